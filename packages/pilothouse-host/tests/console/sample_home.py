"""A home with conversations of some weeks, and the journal of a fleet, as a user has them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pilothouse as ph
from pilothouse_fleet import Fleet
from pilothouse_testing import FakeCLI

OPUS, SONNET = "claude-opus-5-5", "claude-sonnet-5-0"
TOPICS = (
    "Fix the flaky login test", "Add a dark theme to the settings page", "Why is the import so slow?",
    "Write the release notes for 4.2", "Move the tests to the new runner", "Review the payment module",
)  # fmt: skip


def write_conversation(
    home: Path, work: Path, messages: Sequence[dict[str, Any]], *, age: timedelta = timedelta(), dollars: float = 0.0
) -> str:
    """Write a conversation as Claude Code keeps it; returns its id."""
    session = str(uuid.uuid4())
    place = home / ".claude" / "projects" / "".join(char if char.isalnum() else "-" for char in str(work))
    place.mkdir(parents=True, exist_ok=True)
    moment, parent, rows = datetime.now(UTC) - age, None, list[str]()
    for number, message in enumerate(messages):
        known: dict[str, Any] = {
            "uuid": str(uuid.uuid4()),
            "parentUuid": parent,
            "sessionId": session,
            "cwd": str(work),
        }
        known |= {
            "timestamp": (moment + timedelta(seconds=number)).isoformat(),
            "gitBranch": "main",
            "isSidechain": False,
        }
        rows.append(json.dumps({**known, **message}, separators=(",", ":")))
        parent = known["uuid"]
    if dollars:
        usage = {OPUS: {"inputTokens": 2000, "outputTokens": 900, "costUSD": dollars}}
        rows.append(
            json.dumps({"type": "cost-state", "sessionId": session, "totalCostUSD": dollars, "modelUsage": usage})
        )
    file = place / f"{session}.jsonl"
    file.write_text("\n".join(rows) + "\n")
    os.utime(file, (moment.timestamp(), moment.timestamp()))
    return session


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


def assistant(*blocks: Any, model: str = OPUS, **usage: int) -> dict[str, Any]:
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    body = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model, "content": content}
    return {"type": "assistant", "message": {**body, "usage": {"input_tokens": 0, "output_tokens": 0, **usage}}}


def fill_home(home: Path, work: Path, days: int = 28) -> None:
    """Conversations of the last days in three projects, with what they cost."""
    for day in range(days):
        for number in range((day * 7) % 4):
            project = work / ("shop", "website", "reports")[(day + number) % 3]
            project.mkdir(exist_ok=True)
            topic = TOPICS[(day * 3 + number) % len(TOPICS)]
            size = 900 + 400 * ((day * 5 + number * 3) % 7)
            model = SONNET if number == 1 else OPUS
            answer = assistant(
                "Done.", model=model, input_tokens=size, output_tokens=size // 2, cache_read_input_tokens=size * 6
            )
            age = timedelta(days=day, hours=number)
            write_conversation(home, project, [user(topic), answer], age=age, dollars=0.4 + (day * 13 % 9) / 6)


async def make_fleet_journal(path: Path) -> None:
    """A fleet of which some runs ended, one failed, and some wait."""
    with FakeCLI().text("The door was repaired; no further work is needed.", total_cost_usd=0.031) as fake:
        async with Fleet(ph.Agent(cli=fake.path), concurrency=2, journal=path) as fleet:
            tickets = [f"Triage ticket {number}: the lamp of room {number} is out" for number in range(7)]
            await fleet.gather(tickets, key=lambda prompt: prompt.split(":")[0].removeprefix("Triage "))
    with FakeCLI().stderr("no such model").exit(1) as broken:
        async with Fleet(ph.Agent(cli=broken.path), retry=None, stop_after=None, journal=path) as fleet:
            await fleet.gather(["Triage ticket 7: the door squeaks"], key=lambda prompt: "ticket 7")
    async with Fleet(concurrency=0, journal=path) as fleet:
        await fleet.enqueue(["Triage ticket 8: too hot", "Triage ticket 9: too cold"], key=lambda prompt: prompt[7:15])
