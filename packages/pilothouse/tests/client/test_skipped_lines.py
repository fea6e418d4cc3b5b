"""Lines that could not be read, and tools that nobody was asked about, are told."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import pilothouse as ph
from pilothouse import sync
from pilothouse.events import LineSkipped
from pilothouse.messages import LineSkippedMessage, PermissionDeniedMessage
from pilothouse.permissions import deny_all
from pilothouse.protocol.validator import StreamFaultKind
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

LONG = json.dumps(frames.assistant("y" * 5000)) + "\n"
BROKEN = '{"type": "assistant", "message": \n'
NO_MESSAGE = '{"no": "type"}\n'
NOISE = "npm warn something\n"


def one_turn(fake: FakeCLI, *lines: str) -> FakeCLI:
    return fake.expect("user").emit(frames.init(), *lines, frames.result("ok"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [(LONG, "too_long"), (BROKEN, "not_json"), (NO_MESSAGE, "no_message"), (NOISE, "not_json")],
    ids=["long", "broken", "no message", "noise"],
)
async def test_a_line_that_was_skipped_is_a_message_and_counted(fake: FakeCLI, line: str, reason: str) -> None:
    result = await ph.query("go", cli=one_turn(fake, line).path, max_line_bytes=1500)
    assert [type(message) for message in result.messages] == [ph.InitMessage, LineSkippedMessage, ph.ResultMessage]
    match result.messages[1]:
        case LineSkippedMessage(reason=why, lines=1, text=text):
            assert why == reason
            assert text
        case other:
            pytest.fail(f"not told: {other}")
    assert (result.skipped_lines, result.is_success) == (1, True)
    report = result.validate()
    assert not report.ok
    assert [fault.kind for fault in report.faults] == [StreamFaultKind.SKIPPED_LINE]


async def test_a_query_of_a_session_and_listeners_get_the_report(fake: FakeCLI) -> None:
    one_turn(fake, LONG, NO_MESSAGE)
    fake.text("second")
    with anyio.fail_after(20):
        async with ph.session(cli=fake.path, max_line_bytes=1500) as session:
            listener = session.messages()
            first, second = await session.query("one"), await session.query("two")
            events = [event async for event in ph.query("go", cli=fake.path, max_line_bytes=1500).events()]
        received = [message async for message in listener if isinstance(message, LineSkippedMessage)]
    assert (first.skipped_lines, second.skipped_lines, len(received)) == (2, 0, 2)
    assert isinstance(first.messages[-1], ph.ResultMessage)
    assert sum(isinstance(event, LineSkipped) for event in events) == 2


def test_many_of_one_kind_are_one_message_for_each_read(fake: FakeCLI) -> None:
    result = sync.query("go", cli=one_turn(fake, NOISE * 20_000).path).result()
    reported = [message for message in result.messages if isinstance(message, LineSkippedMessage)]
    assert result.skipped_lines == 20_000
    assert len(reported) < 200
    assert sum(message.size for message in reported) == 20_000 * len(NOISE.strip())
    assert result.validate().fault_count == 20_000


@pytest.mark.parametrize("line", [b"x\n", b"\n"])
async def test_other_tasks_run_while_a_child_prints_much_that_is_no_message(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.engine.channel.PIECE_BYTES", 100)
    flood = line * (20_000 // len(line))
    turns: list[int] = []

    async def play(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))
            else:
                for part in (frames.init(), flood, flood, frames.result("ok")):
                    await peer.write(part)

    async def count() -> None:
        while True:
            turns.append(0)
            await checkpoint()

    query = ph.query("go", transport=MemoryTransport(play, chunk=200_000))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await query
        tasks.cancel_scope.cancel()
    result = await query
    assert result.text == "ok"
    assert result.skipped_lines == (2 * flood.count(b"\n") if line.strip() else 0)
    assert len(turns) > len(flood) / 100  # the first part may come in one chunk


def test_the_count_stays_where_the_messages_were_not_kept(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), NO_MESSAGE).repeat(6000, frames.assistant("x" * 1000))
    fake.emit(NO_MESSAGE, frames.result("done"))
    query = sync.query("go", cli=fake.path)
    for _ in query:
        pass
    assert query.result().skipped_lines == 2


def test_noise_is_no_sign_of_life() -> None:
    fake = FakeCLI(lifecycle=False).expect("user").emit(NOISE).hang()
    with pytest.raises(ph.QueryTimeout) as caught:
        sync.query("go", cli=fake.path, startup_timeout=0.5).result()
    assert caught.value.kind == "startup_timeout"


# Tools that were denied because nobody was there to ask.


def denied(tool: str = "Write", **reason: Any) -> dict[str, Any]:
    about = {"tool_name": tool, "tool_use_id": "toolu_1", "message": "you haven't granted it yet", **reason}
    return {"type": "system", "subtype": "permission_denied", **about, "session_id": frames.SESSION_ID}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "was denied" in record.getMessage()]


async def test_a_tool_that_was_denied_unasked_is_warned_of_once(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture
) -> None:
    fake.expect("user").emit(frames.init(), denied(), denied("Bash"), frames.result("Done")).forever()
    result = await ph.query("Refactor", cli=fake.path)
    assert sum(isinstance(message, PermissionDeniedMessage) for message in result.messages) == 2
    [output] = warnings_of(caplog)
    assert output == (
        "the tool Write was denied, because no function decides permissions; set "
        'permission_mode="acceptEdits" (for edits), allowed_tools=["Write"] or can_use_tool=…'
    )
    async with ph.session(cli=fake.path) as session:
        await session.query("one")
        await session.query("two")
    assert len(warnings_of(caplog)) == 3


@pytest.mark.parametrize(
    "reason",
    [
        {"decision_reason_type": "mode"},
        {"decision_reason_type": "rule"},
        {"decision_reason_type": "subcommandResults", "message": "Permission to use Bash … has been denied."},
    ],
)
def test_what_a_rule_or_a_mode_denied_is_not(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture, reason: dict[str, Any]
) -> None:
    fake.expect("user").emit(frames.init(), denied(**reason), frames.result("Done"))
    sync.query("Refactor", cli=fake.path).result()
    assert warnings_of(caplog) == []


def test_there_is_no_warning_with_a_permission_handler(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    fake.expect("user").emit(frames.init(), denied(), frames.result("Done"))
    sync.query("Refactor", cli=fake.path, can_use_tool=deny_all()).result()
    assert warnings_of(caplog) == []


def test_what_this_process_denied_is_warned_of_too(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    """The CLI asks here, since questions are answered here, and about tools there is nobody."""
    fake.expect("user").emit(frames.init())
    for _ in range(2):
        fake.ask("can_use_tool", tool_name="Write", input={})
    fake.emit(frames.result("Done"))
    sync.query("Refactor", cli=fake.path, on_question=lambda _: {}).result()
    assert len(warnings_of(caplog)) == 1
