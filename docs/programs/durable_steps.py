"""Work of several steps that survives its program: DBOS records each answer, and no step is asked twice.

pip install pilothouse dbos
python durable_steps.py release-7 notes.txt     the same name again continues, whatever ended the program
"""

import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from dbos import DBOS, SetWorkflowID

from pilothouse import sync as ph
from pilothouse.errors import SessionNotFoundError
from pilothouse.options import RetryPolicy

agent = ph.Agent(tools=[], max_budget_usd=0.50, retry=RetryPolicy(attempts=5))


@DBOS.step()
def ask(prompt: str, session_id: str) -> tuple[str, float]:
    """Ask, or continue the session that a killed program began."""
    result = agent.query("Continue where you stopped.", resume=session_id).result()
    if isinstance(result.error, SessionNotFoundError):
        result = agent.query(prompt, session_id=session_id).result()
    result.raise_for_error()
    return result.text, result.cost_usd or 0.0


@DBOS.workflow()
def announce(notes: str) -> str:
    """Two steps; the second builds on the answer of the first."""
    name = f"pilothouse:{DBOS.workflow_id}"
    changes, first = ask(f"List what users will notice:\n{notes}", str(uuid5(NAMESPACE_URL, f"{name}/changes")))
    text, second = ask(f"Announce this in two sentences:\n{changes}", str(uuid5(NAMESPACE_URL, f"{name}/text")))
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
