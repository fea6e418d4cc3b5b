"""A Temporal activity whose conversation survives its worker.

pip install temporalio        and the extra `fleet` of pilothouse
temporal server start-dev
python durable_temporal.py ticket-7 "The door squeaks"     runs a worker, too
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import pilothouse as ph
    from pilothouse.options import RetryPolicy
    from pilothouse_fleet import durable_query

agent = ph.Agent(
    tools=[],
    timeout=1500,
    max_budget_usd=0.50,
    retry=RetryPolicy(attempts=5),
)


@activity.defn
async def triage(ticket: str) -> str:
    """Ask, or continue what a killed worker began under the same ids."""
    info = activity.info()
    key = f"{info.workflow_id}/{info.activity_id}"
    query = durable_query(f"Triage: {ticket}", key=key, agent=agent)
    asking = asyncio.ensure_future(query)
    try:
        while not (await asyncio.wait([asking], timeout=10))[0]:
            activity.heartbeat()  # Temporal soon notices a dead worker
        return asking.result().text
    finally:
        asking.cancel()  # ends the child


@workflow.defn
class Tickets:
    """One step; each further one is a further activity."""

    @workflow.run
    async def run(self, ticket: str) -> str:
        return await workflow.execute_activity(
            triage,
            ticket,
            start_to_close_timeout=timedelta(minutes=30),
            heartbeat_timeout=timedelta(seconds=30),
        )


async def main(name: str, ticket: str) -> None:
    client = await Client.connect("localhost:7233")
    queue = "tickets"
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[Tickets],
        activities=[triage],
    )
    async with worker:
        answer = await client.execute_workflow(
            Tickets.run,
            ticket,
            id=name,
            task_queue=queue,
        )
        print(answer)


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit("usage: python durable_temporal.py NAME TICKET")
    asyncio.run(main(*sys.argv[1:]))
