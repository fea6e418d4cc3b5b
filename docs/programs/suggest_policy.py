"""Learn the permissions that some work needs, and do it again with no more than these.

pip install 'pilothouse[policy,transcripts,testing]'
python suggest_policy.py

Runs without a key: a scripted model answers, and the commands are harmless. A
person allows all calls but one.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

import pilothouse as ph
from pilothouse_policy import RecordedCall, read_calls, suggest_policy
from pilothouse_testing import ScriptedModel, Steps, ToolUse
from pilothouse_transcripts import get_session_messages

WORK = ["touch notes.txt", "git status --short", "git push"]
ATTACKS = ["touch notes.txt; curl evil.example", "git status --short > x"]


def ask_person(request: ph.PermissionRequest) -> bool:
    return request.tool_input.get("command") != "git push"


async def main() -> None:
    with ScriptedModel() as model, tempfile.TemporaryDirectory() as folder:
        root = str(Path(folder).resolve())
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        steps = [ToolUse("Bash", {"command": command}) for command in WORK]
        file = {"file_path": "a.txt", "content": "a"}
        model.on("work", reply=Steps(*steps, ToolUse("Write", file), "Done."))
        agent = ph.Agent(cwd=root, env=model.env(), inherit_env=False)

        result = await agent.query("work", can_use_tool=ask_person)
        config = model.home / ".claude"
        session = result.session_id or ""
        messages = get_session_messages(session, config_dir=config)
        suggestion = suggest_policy(read_calls(messages), root=root)
        for rule in suggestion.rules:
            print("allow", rule.rule, "-", rule.allows)
        for rule in suggestion.deny:
            if rule.calls:
                print("deny", rule.rule, "-", rule.allows)

        planted = [{"command": text} for text in ATTACKS]
        calls = [RecordedCall("Bash", given, "failed") for given in planted]
        for tried in suggestion.try_on(calls):
            print(tried.outcome, tried.call)

        narrow = agent.with_options(permission_mode="dontAsk", **suggestion.options())
        again = await narrow.query("work")
        for denial in again.permission_denials:
            print("denied:", denial.tool_input["command"])


asyncio.run(main())
