"""What may be given as `transport`: a transport, what makes one, or an object with the methods of one."""

from __future__ import annotations

import asyncio
import inspect
import json
from functools import partial
from typing import Any

import anyio
import pytest
import trio

import pilothouse as ph
from pilothouse.transports import ExitInfo, Health, MemoryPeer, MemoryTransport, TransportWrapper
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


class Echo:
    """A peer that answers with the prompt. It derives from nothing."""

    def __init__(self, place: str = "it") -> None:
        self.place = place
        self.said = bytearray()
        self.spoke = anyio.Event()
        self.calls: list[str] = []

    async def start(self, invocation: Any) -> None:
        self.calls.append("start")

    async def send(self, data: bytes) -> None:
        for line in data.splitlines():
            frame = json.loads(line)
            if frame["type"] == "control_request":
                self._say(frames.control_response(frame["request_id"], frames.server_info()))
            else:
                text = frame["message"]["content"]
                self._say(frames.init(), frames.assistant(text), frames.result(text))

    def _say(self, *said: Any) -> None:
        self.said += b"".join(json.dumps(each).encode() + b"\n" for each in said)
        self.spoke.set()

    async def receive(self) -> bytes:
        while not self.said:
            if "end_input" in self.calls:
                return b""
            self.spoke = anyio.Event()
            await self.spoke.wait()
        said = bytes(self.said)
        self.said.clear()
        return said

    async def end_input(self) -> None:
        self.calls.append("end_input")
        self.spoke.set()

    async def close(self) -> None:
        self.calls.append("close")

    def health(self) -> Health:
        return Health("degraded", f"{self.place} is slow")


class WithAll(Echo):
    """Has what a transport need not have, too."""

    async def serve(self) -> None:
        self.calls.append("serve")

    async def ending(self) -> ExitInfo:
        return ExitInfo(exit_code=0)


@pytest.mark.requirement("R37")
@pytest.mark.parametrize("made", [Echo, WithAll])
@pytest.mark.parametrize("as_factory", [False, True])
async def test_an_object_with_the_methods_of_a_transport_is_one(made: type[Echo], as_factory: bool) -> None:
    transport = made()
    given: Any = (lambda: transport) if as_factory else transport
    assert (await ph.query("hi", transport=given)).text == "hi"
    assert transport.calls[0] == "start"
    assert transport.calls[-1] == "close"
    assert ("serve" in transport.calls) == (made is WithAll)


@pytest.mark.requirement("E32", "E36", "E38", "R37")
async def test_a_class_with_its_configuration_carries_sessions() -> None:
    agent = ph.Agent(transport=partial(Echo, place="the harbour"))
    async with agent.session() as session, agent.session() as other:
        assert [(await session.query(text)).text for text in ("one", "two")] == ["one", "two"]
        assert (await other.query("three")).text == "three"
        assert session.health() == other.health() == Health("degraded", "the harbour is slow")
        assert session.pid is None
        await session.set_model("haiku")
    with pytest.raises(ph.OptionsError, match="option 'transport': expected a Transport"):
        ph.Agent(transport="local")


@pytest.mark.requirement("E32")
def test_the_contract_is_small_and_written_down() -> None:
    abstract = {name for name in vars(ph.Transport) if getattr(vars(ph.Transport)[name], "__isabstractmethod__", False)}
    assert {"start", "send", "receive", "end_input", "close", "health"} <= abstract
    assert all(inspect.getdoc(getattr(ph.Transport, name)) for name in abstract)


class Half:
    async def start(self, invocation: Any) -> None: ...

    async def receive(self) -> bytes:
        return b""


@pytest.mark.parametrize("given", [Half(), Half])
async def test_what_is_missing_is_named(given: Any) -> None:
    with pytest.raises(ph.OptionsError, match=r"'transport'.*; Half has no close, end_input, health, send: derive"):
        await ph.query("hi", transport=given)


async def broken(peer: MemoryPeer) -> None:
    raise RuntimeError("the peer is wrong")


def cannot_make() -> Any:
    raise RuntimeError("the factory is wrong")


@pytest.mark.parametrize(("given", "text"), [(broken, "the peer is wrong"), (None, "the factory is wrong")])
@pytest.mark.parametrize("in_session", [False, True])
async def test_what_a_peer_or_a_factory_raises_is_found_in_the_error(given: Any, text: str, in_session: bool) -> None:
    transport = cannot_make if given is None else MemoryTransport(given)

    async def ask() -> None:
        if not in_session:
            await ph.query("hi", transport=transport)
            return
        async with ph.session(transport=transport) as session:
            await session.query("hi")

    with pytest.raises((RuntimeError, ph.ProcessError)) as caught:
        await ask()
    cause = ph.find_cause(caught.value, RuntimeError)
    assert cause is not None
    assert str(cause) == text
    if given is not None:
        assert isinstance(caught.value, ph.ProcessError)
        assert caught.value.stderr == ""
        assert "the other side of the transport failed" in str(caught.value)
        assert "CLI" not in str(caught.value)
        assert "Traceback" not in str(caught.value)


class Mistaken(Echo):
    """Raises in one of its methods, at the first call."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()

        async def fail(*_: Any) -> Any:
            raise error

        setattr(self, method, fail)


METHODS = ("start", "serve", "send", "receive", "close")


async def ask_mistaken(method: str, error: BaseException, *, in_session: bool, kind: type[Mistaken] = Mistaken) -> None:
    """Without an error of the transport, the query would wait for ever, or trio end with an internal error."""
    transport: Any = partial(kind, method, error)

    async def ask() -> None:
        if in_session:
            async with ph.session(transport=transport) as session:
                await session.query("hi")
        else:
            await ph.query("hi", transport=transport)

    with anyio.fail_after(15), pytest.raises(ph.PilothouseError, match="the transport") as caught:
        await ask()
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("x")])
async def test_a_transport_that_raises_no_exception_fails(error: BaseException, method: str, in_session: bool) -> None:
    await ask_mistaken(method, error, in_session=in_session)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("method", METHODS)
async def test_a_transport_whose_own_task_is_cancelled_fails(method: str, in_session: bool) -> None:
    await ask_mistaken(method, asyncio.CancelledError(), in_session=in_session)


class Breaking(TransportWrapper):
    """Fails at requests about a budget, with an error that no transport should raise; then comes the result."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(MemoryTransport(self._play))
        self._error = error
        self._has_failed = anyio.Event()

    async def send(self, data: bytes) -> None:
        if b"get_usage" in data or b"interrupt" in data or b"control_cancel" in data:
            self._has_failed.set()
            raise self._error
        await super().send(data)

    async def _play(self, peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
                continue
            await peer.write(frames.init())
            await peer.write(frames.assistant("hi"))
            await self._has_failed.wait()
            await peer.write(frames.result("hi", user_message_uuid=frame["uuid"]))


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("error", [ConnectionResetError("gone"), SystemExit(3)])
@pytest.mark.parametrize("limit", [1, 1_000_000])
async def test_a_budget_that_cannot_ask_the_transport_says_so(
    limit: int, error: BaseException, in_session: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks that ask and stop belong to nobody: an error in them would end the loop."""
    settings: dict[str, Any] = {"transport": lambda: Breaking(error), "max_budget_tokens": limit}
    if in_session:
        async with ph.session(**settings) as session:
            assert (await session.query("hi")).full_text == "hi"
    else:
        assert (await ph.query("hi", **settings)).full_text == "hi"
    if isinstance(error, SystemExit):
        error = ph.PilothouseError("the transport raised SystemExit")
    elif limit > 1:
        assert "the totals could not be read: gone" in caplog.text
    assert limit > 1 or f"could not be interrupted: {error}" in caplog.text


async def test_an_abandoned_query_cannot_end_the_loop_by_its_transport() -> None:
    with anyio.fail_after(30):
        async with ph.session(transport=lambda: Breaking(SystemExit(3))) as session:
            query = await session.query("hi").start()
            await anext(aiter(query))
            await query.aclose()
            with pytest.raises(ph.SessionClosedError):
                await query.result()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_nursery_of_a_transport_that_is_cancelled_is_no_failure() -> None:
    class WithNursery(Echo):
        async def serve(self) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)

    assert (await ph.query("hi", transport=WithNursery)).text == "hi"
    async with ph.session(transport=WithNursery) as session:
        assert (await session.query("hi")).text == "hi"


@pytest.mark.parametrize("in_session", [False, True])
async def test_an_exit_that_a_transport_cannot_explain_fails(in_session: bool) -> None:
    class Unexplained(Mistaken):
        async def receive(self) -> bytes:
            return b""

    await ask_mistaken("exit_info", SystemExit(3), in_session=in_session, kind=Unexplained)


async def test_a_result_that_comes_before_the_prompt_is_sent() -> None:
    class Early(Echo):
        async def start(self, invocation: Any) -> None:
            self._say(frames.init(), frames.assistant("early"), frames.result("early"))

        async def send(self, data: bytes) -> None:
            pass

    with anyio.fail_after(30):
        assert (await ph.query("hi", transport=Early, until="idle")).text == "early"
