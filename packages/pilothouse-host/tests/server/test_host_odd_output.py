"""Output of a child that is unusual but possible: half of a surrogate pair, and JSON that is nested too deeply to read.

JavaScript cuts texts between the halves of a pair, and writes such a half as an escape.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from served_host import Served
from session_cli import Cli, Say, bash_request
from test_host_races import finish, opened, until
from test_rest import until as wait_until

from pilothouse.permissions import Ask
from pilothouse_access.owners import OPERATOR
from pilothouse_host import rest
from pilothouse_testing import frames

HALF = "\ud83d"
DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("line", "events"),
    [
        (b'{"type":"assistant","text":"a\\ud83d"}', [b'data: {"type":"assistant","text":"a\\ud83d"}']),
        (
            b'{"type":"control_request","request":{"subtype":"can_use_tool","input":"\\ud83d"}}',
            [
                b"event: asked",
                b'data: {"type":"control_request","request":{"subtype":"can_use_tool","input":"\\ud83d"}}',
            ],
        ),
        (b'{"type":"control_request","request":{"subtype":"hook_callback","input":"\\ud83d"}}', []),
        (b'{"type":"control_request","request":"\\ud83d"}', []),
        (b'{"type":"control_response","response":"\\ud83d"}', []),
        (b'{"type":"\\ud83d","text":', []),
        (b'{"type":7,"text":"\\ud83d"}', []),
        (b'"\\ud83d"', []),
        (b'{"type":"assistant","text":' + DEEP + b"}", []),
        (b'{"type":"control_request","request":' + DEEP + b"}", []),
    ],
)
def test_a_viewer_gets_lines_that_msgspec_refuses(line: bytes, events: list[bytes]) -> None:
    session: Any = type("Session", (), {"attached_count": 1, "shared_events": None})
    seen = rest.NumberedLines(0).encode(session, line + b"\n" + b'{"type":"result"}\n')
    place = len(line) + 1
    first = b"\n".join([b"id: %d" % place, *events, b"", b""]) if events else b""
    assert seen == first + b'id: %d\ndata: {"type":"result"}\n\n' % (place + 18)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_half_of_a_surrogate_pair_does_not_end_the_host(tmp_path: Path) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        asked = bash_request("r1")
        asked["request"]["input"] = {"command": f"echo {HALF}"}
        await say((json.dumps(asked) + "\n").encode())  # type: ignore[arg-type] - the peer takes bytes
        await until(lambda: len(session.approvals) > 0)
        [ask] = session.approvals.describe()
        await session.approvals.settle(ask["id"], Ask.allow, lambda _: anyio.sleep(0))
        return f"cut here: {HALF}"

    cli.acts["act"] = act
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        await host.send_prompt(session, "act")
        await finish(session)
        assert session.describe()["last_result"]["text"] == f"cut here: {HALF}"
        events = [(kind, json.loads(data)) for _, kind, data in await host.journal.read_events(0, OPERATOR)]
        [asked] = [data for kind, data in events if kind == "asked"]
        assert asked["request"]["input"] == {"command": f"echo {HALF}"}
        assert events[-1][1]["last_result"]["text"] == f"cut here: {HALF}"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_ask_with_half_of_a_surrogate_pair_survives_a_restart(tmp_path: Path) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        asked = bash_request("r1")
        asked["request"]["input"] = {"command": HALF}
        await say((json.dumps(asked) + "\n").encode())  # type: ignore[arg-type]
        await anyio.sleep_forever()
        raise AssertionError

    cli.acts["act"] = act
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        await host.send_prompt(session, "act")
        await until(lambda: len(session.approvals) > 0)
    async with opened(tmp_path, cli) as host:
        [again] = host.sessions
        assert again.id == session.id
        [ask] = again.approvals.describe()  # type: ignore[attr-defined]
        assert (ask["restored"], ask["request"]["input"]) == (True, {"command": HALF})


def test_responses_have_half_of_a_surrogate_pair(serve_host: Callable[..., Served]) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(frames.assistant(HALF))
        return HALF

    cli.acts["act"] = act
    served = serve_host(cli="/usr/bin/true", make_transport=cli.transport)
    _, made = served.request("POST", "/v1/sessions", {"prompt": "act"})
    with served.events(made["id"]) as events:
        said = [
            next(event["data"] for event in events if event["data"]["type"] == kind) for kind in ("assistant", "result")
        ]
    assert [said[0]["message"]["content"][0]["text"], said[1]["result"]] == [HALF, HALF]
    assert wait_until(served, made["id"], waiting=0)["last_result"]["text"] == HALF
    assert served.request("GET", "/v1/sessions")[0] == 200
