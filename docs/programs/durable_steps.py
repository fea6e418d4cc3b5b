"""Durable steps: DBOS records each answer, and no step is asked twice.

pip install dbos        and the extra `fleet` of pilothouse
python durable_steps.py release-7 notes.txt   # the same name continues
"""

import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID

from pilothouse import sync as ph
from pilothouse.options import RetryPolicy
from pilothouse_fleet.sync import durable_query

agent = ph.Agent(tools=[], max_budget_usd=0.50, retry=RetryPolicy(attempts=5))


@DBOS.step()
def ask(prompt: str, key: str) -> tuple[str, float]:
    """Ask, or continue what a killed program began."""
    result = durable_query(prompt, key=key, agent=agent)
    return result.text, result.cost_usd or 0.0


@DBOS.workflow()
def announce(notes: str) -> str:
    """Two steps; the second builds on the answer of the first."""
    key = DBOS.workflow_id
    prompt = f"List what users will notice:\n{notes}"
    changes, first = ask(prompt, f"{key}/changes")
    prompt = f"Announce this in two sentences:\n{changes}"
    text, second = ask(prompt, f"{key}/text")
    return f"{text}\n[${first + second:.4f}]"


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit("usage: python durable_steps.py NAME NOTES")
    DBOS(
        config={
            "name": "announce",
            # For many hosts: postgresql://…
            "system_database_url": "sqlite:///durable.db",
            # Without it, a changed program leaves interrupted work alone.
            "application_version": "1",
            "console_log_level": "ERROR",
        }
    )
    DBOS.launch()  # continues what was interrupted
    with SetWorkflowID(sys.argv[1]):
        notes = Path(sys.argv[2]).read_text("utf-8")
        handle = DBOS.start_workflow(announce, notes)
    try:
        print(handle.get_result())
    finally:
        DBOS.destroy()
