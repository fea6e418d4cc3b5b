"""A procrastinate task whose conversation survives its worker.

pip install procrastinate        and the extra `fleet` of pilothouse
export DATABASE=postgresql://localhost/tickets
procrastinate --app durable_procrastinate.app schema --apply
python durable_procrastinate.py work
python durable_procrastinate.py add "The door squeaks"
"""

import asyncio
import os
import sys

import procrastinate

import pilothouse as ph
from pilothouse.options import RetryPolicy
from pilothouse_fleet import durable_query

if "DATABASE" not in os.environ:
    sys.exit("set DATABASE, such as postgresql://localhost/tickets")
connector = procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE"])
app = procrastinate.App(connector=connector)
agent = ph.Agent(tools=[], max_budget_usd=0.50, retry=RetryPolicy(attempts=5))
# Seconds without a sign of life:
DEAD_AFTER = float(os.environ.get("DEAD_AFTER", "30"))


@app.task(name="triage", pass_context=True)
async def triage(context: procrastinate.JobContext, ticket: str) -> None:
    """Ask, or continue what a killed worker began under the same job id."""
    key = f"tickets/{context.job.id}"
    result = await durable_query(f"Triage: {ticket}", key=key, agent=agent)
    print(result.text, flush=True)  # or write it to a table


@app.periodic(cron="* * * * * */5")
@app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
async def retry_stalled_jobs(timestamp: int) -> None:
    """Queue the jobs of dead workers again."""
    jobs = app.job_manager
    for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=DEAD_AFTER):
        await jobs.retry_job(job)


async def main(command: str, *tickets: str) -> None:
    async with app.open_async():
        for ticket in tickets:
            await triage.defer_async(ticket=ticket)
        if command == "work":
            await app.run_worker_async(concurrency=4)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python durable_procrastinate.py work|add [TICKET …]")
    asyncio.run(main(*sys.argv[1:]))
