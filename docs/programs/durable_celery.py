"""A Celery task whose conversation survives its worker.

pip install 'celery[redis]'        and the extra `fleet` of pilothouse
celery --app durable_celery worker --concurrency 4
python durable_celery.py ticket-7 "The door squeaks"
"""

import os
import sys
from typing import Any

from celery import Celery

from pilothouse import sync as ph
from pilothouse.options import RetryPolicy
from pilothouse_fleet.sync import durable_query

BROKER = os.environ.get("BROKER", "redis://localhost")
# Seconds until an unfinished task is delivered again: longer than an answer.
REDELIVER_AFTER = int(os.environ.get("REDELIVER_AFTER", "3600"))
app: Any = Celery("tickets", broker=BROKER, backend=BROKER)
app.conf.update(
    task_acks_late=True,  # a task whose worker dies is delivered again
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": REDELIVER_AFTER},
)
agent = ph.Agent(
    tools=[],
    timeout=1800,
    max_budget_usd=0.50,
    retry=RetryPolicy(attempts=5),
)


@app.task(name="triage", bind=True)
def triage(self: Any, ticket: str) -> str:
    """Ask, or continue what a killed worker began under the same task id."""
    key = self.request.id
    return durable_query(f"Triage: {ticket}", key=key, agent=agent).text


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit("usage: python durable_celery.py NAME TICKET")
    print(triage.apply_async((sys.argv[2],), task_id=sys.argv[1]).get())
