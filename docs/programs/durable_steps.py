"""Work of several steps that survives its program: DBOS records each answer, and no step is asked twice.

pip install 'pilothouse[fleet]' dbos
python durable_steps.py release-7 notes.txt     the same name again continues, whatever ended the program
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
    changes, first = ask(f"List what users will notice:\n{notes}", f"{DBOS.workflow_id}/changes")
    text, second = ask(f"Announce this in two sentences:\n{changes}", f"{DBOS.workflow_id}/text")
    return f"{text}\n[${first + second:.4f}]"


if __name__ == "__main__":
    DBOS(
        config={
            "name": "announce",
            "system_database_url": "sqlite:///durable.db",  # or postgresql://…, for many hosts
            "application_version": "1",  # without it, a changed program leaves interrupted work alone
            "console_log_level": "ERROR",
        }
    )
    DBOS.launch()  # continues what was interrupted
    with SetWorkflowID(sys.argv[1]):
        handle = DBOS.start_workflow(announce, Path(sys.argv[2]).read_text("utf-8"))
    try:
        print(handle.get_result())
    finally:
        DBOS.destroy()
