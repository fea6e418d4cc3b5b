"""Decide in your program what the model may do.

python 06_permissions.py
"""

import asyncio
import tempfile
from pathlib import Path

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, ToolUse


def decide(request: ph.PermissionRequest) -> ph.Allow | ph.Deny:
    path = request.tool_input.get("file_path", "")
    if request.tool_name == "Write" and path.endswith(".md"):
        print("allowed:", request.tool_name)
        return ph.Allow()
    print("denied:", request.tool_name)
    return ph.Deny("You may write Markdown files, and nothing else.")


async def main() -> None:
    with ScriptedModel() as model, tempfile.TemporaryDirectory() as name:
        log = Path(name, "log.md")
        log.write_text("The Fram left at noon.\n")
        note = {
            "file_path": str(Path(name, "note.md")),
            "content": "Pier 3 is free.\n",
        }
        plan = Steps(
            [ToolUse("Bash", {"command": "rm log.md"})],
            [ToolUse("Write", note)],
            "I wrote a note instead.",
        )
        model.on("Tidy up", reply=plan)

        agent = ph.Agent(
            env=model.env(),
            inherit_env=False,
            cwd=name,
            can_use_tool=decide,
        )
        result = await agent.query("Tidy up")
        print(result.raise_for_error().text)
        print("files:", sorted(path.name for path in Path(name).iterdir()))
        denials = result.permission_denials
        print("denials:", [denial.tool_name for denial in denials])


asyncio.run(main())
