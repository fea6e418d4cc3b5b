"""A life with everything in it that watchers are told, and watchers that fail in every place, in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from msgspec import Struct

import pilothouse as ph
from pilothouse.hooks import Hooks
from pilothouse.instrumentation import Observer
from pilothouse.options import RetryPolicy
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

SOON = RetryPolicy(attempts=2, first_delay=0.001, jitter=0.0)
PLACES = (
    "query_started", "session_environ", "environ", "run_context", "entering", "leaving", "on_message", "on_retry",
    "on_retry_scheduled", "on_call_start", "on_call_end", "on_restart", "on_end",
)  # fmt: skip


class Odd(BaseException):
    """No `Exception`."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def giving(value: Any) -> Callable[..., Any]:
    return lambda *_: value


FAULTS: dict[str, Callable[..., Any]] = {
    "an error": raising(RuntimeError("of a watcher")),
    "a cancellation": raising(asyncio.CancelledError()),  # as the result of a future that was cancelled is one
    "an odd one": raising(Odd()),
    "a group": raising(BaseExceptionGroup("both", [Odd(), ValueError()])),
    "the end of a generator": raising(GeneratorExit()),
    "a number": giving(7),
    "nothing": giving(None),
    "an odd mapping": giving({"A": 5, 3: None}),
    "an odd name": giving({"a=b": "x"}),
    "an odd value": giving({"A": "x\0y", "B": "\ud800"}),
}


class Block:
    def __init__(self, faults: Mapping[str, str]) -> None:
        self._faults = faults

    def __enter__(self) -> object:
        return FAULTS[self._faults["entering"]]() if "entering" in self._faults else None

    def __exit__(self, *_: object) -> object:
        return FAULTS[self._faults["leaving"]]() if "leaving" in self._faults else None


class Breaking:
    """Fails in some places; `told` has those where it was at all."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = faults
        self.notified: set[str] = set()

    def query_started(self, start: Any) -> Any:
        self.notified.add("query_started")
        return self._fault("query_started")() if "query_started" in self.faults else BreakingObserver(self)

    def session_environ(self) -> Any:
        self.notified.add("session_environ")
        return self._fault("session_environ")()

    def _fault(self, place: str) -> Callable[..., Any]:
        return FAULTS[self.faults[place]] if place in self.faults else giving({})


class BreakingObserver(Observer):
    def __init__(self, of: Breaking) -> None:
        self.of = of

    def __getattribute__(self, name: str) -> Any:
        if name not in PLACES:
            return object.__getattribute__(self, name)
        of = self.of
        of.notified.add(name)
        if name in of.faults:
            return FAULTS[of.faults[name]]
        return (lambda: Block(of.faults)) if name == "run_context" else object.__getattribute__(self, name)


class Lived(Struct, frozen=True):
    """What came of it."""

    texts: tuple[str, ...]
    asked: int
    errors: tuple[str, ...]
    variables_are_text: bool


class Cli:
    """Asks a hook, is refused by the API once, answers, works on by itself, and dies when it is told to."""

    def __init__(self) -> None:
        self.children = 0
        self.refused = False
        self.environments: list[Mapping[str, str]] = []

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self._play)

    async def _play(self, peer: MemoryPeer) -> None:
        self.environments.append(peer.invocation.env)
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            elif frame["type"] == "user":
                if frame["message"]["content"] == "die":
                    return
                await self._turn(peer, frame["message"]["content"])

    async def _turn(self, peer: MemoryPeer, text: str) -> None:
        await peer.write(frames.init())
        if text == "one" and not self.refused:
            self.refused = True
            given = {
                "hook_event_name": "PreToolUse",
                "tool_name": "Bash",
                "tool_input": {},
                "session_id": "s",
                "cwd": "/",
            }
            ask = {"callback_id": "hook_0", "input": given, "tool_use_id": "t"}
            await peer.write(frames.control_request("hook_callback", request_id="q", **ask))
            while (frame := await peer.read_frame()) is not None and frame["type"] != "control_response":
                pass
            await peer.write(frames.api_retry())
            await peer.write(frames.result("API Error: Overloaded", is_error=True, api_error_status=529))
            return
        await peer.write(frames.assistant(f"re: {text}"))
        await peer.write(frames.result(f"re: {text}"))
        if text == "one":
            await peer.write(frames.init())
            await peer.write(frames.result("by myself", origin={"kind": "task-notification"}))


async def live(*watchers: Any) -> Lived:
    """A session and a query, watched by these."""
    cli, calls, errors = Cli(), [], []

    def check(event: Any) -> None:
        calls.append(event)

    hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check])]}
    settings: dict[str, Any] = {"transport": cli.transport, "instrumentation": list(watchers), "retry": SOON}
    with anyio.fail_after(20):
        async with ph.session(**settings, hooks=hooks) as session:
            listener = session.messages()
            texts = [(await session.query("one")).text]
            async for message in listener:
                if isinstance(message, ph.ResultMessage) and message.is_woken:
                    texts.append(message.result or "")
                    break
            await listener.aclose()
            try:
                await session.query("die")
            except ph.CLIExitedError as error:
                errors.append(type(error).__name__)
            texts.append((await session.query("two")).text)
        alone = ph.query("three", **settings)
        texts += [message.text async for message in alone if isinstance(message, ph.AssistantMessage)]
        texts.append((await alone.result()).text)
    values: list[Any] = [one for env in cli.environments for pair in env.items() for one in pair]
    return Lived(tuple(texts), len(calls), tuple(errors), all(isinstance(one, str) for one in values))
