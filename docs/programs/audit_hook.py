"""Log every tool call as it happens, and refuse those that delete.

python audit_hook.py audit.ndjson "Tidy up this directory"
"""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pilothouse as ph
from pilothouse.hooks import Hooks, PostToolUseFailureEvent

DELETES = re.compile(r"(^|[;&|\s])(rm|rmdir|shred)\s")


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python audit_hook.py LOG [PROMPT]")
    log, prompt = Path(sys.argv[1]), " ".join(sys.argv[2:]) or "Tidy up this directory"

    def write(event: ph.PreToolUseEvent | ph.PostToolUseEvent | PostToolUseFailureEvent, **more: object) -> None:
        entry = {"at": datetime.now(UTC).isoformat(), "event": event.event_name, "tool": event.tool_name, **more}
        with log.open("a") as file:
            file.write(json.dumps(entry, default=str) + "\n")

    def before(event: ph.PreToolUseEvent) -> ph.HookOutput | None:
        refused = event.tool_name == "Bash" and DELETES.search(event.tool_input.get("command", ""))
        write(event, input=event.tool_input, refused=bool(refused))
        return ph.HookOutput.deny("Nothing is deleted here; move it to ./trash instead.") if refused else None

    def after(event: ph.PostToolUseEvent) -> None:
        write(event, ms=event.duration_ms)

    def failed(event: PostToolUseFailureEvent) -> None:
        write(event, error=event.error)

    hooks: Hooks = {"PreToolUse": before, "PostToolUse": after, "PostToolUseFailure": failed}
    result = await ph.query(prompt, tools=["Bash", "Read"], allowed_tools=["Bash", "Read"], hooks=hooks, max_turns=20)
    print(result.raise_for_error().text)


asyncio.run(main())
