"""The `Transport` interface: a duplex stream of bytes to one other side, and how that side ended. Also wrappers.

Owns the contract that every transport keeps (`pilothouse_testing` has the suite for it). Knows nothing of JSON,
messages or queries.

Life of a transport, in this order. A second `start` is an error; `close` may be called at any time and repeatedly::

    start(invocation) → [ serve() ‖ send()* ‖ receive()* ] → end_input() → receive() == b"" → exit_info() → close()

Errors: `send` raises `anyio.BrokenResourceError` after the other side went away. `send` and `receive` raise
`anyio.ClosedResourceError` after `close`. `start` raises a `ProcessError` or, for a remote side, another
`PilothouseError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal

import anyio
from msgspec import Struct

from pilothouse.errors import OptionsError, UsageError
from pilothouse.options import Invocation

HealthState = Literal["healthy", "degraded", "unhealthy"]
SessionFiles = Literal["here", "sent", "there"]


class Health(Struct, frozen=True):
    """Whether the other side can be reached. `reason` says why not."""

    state: HealthState
    reason: str = ""


class ExitInfo(Struct, frozen=True):
    """How the other side ended.

    Attributes:
        exit_code: exit code of the process, if it exited with one.
        signal: name of the signal that ended the process, if one did.
        stderr: tail of its standard error, with keys removed.
        detail: a hint in words.
        error: what the script of a `MemoryTransport` raised; it becomes the cause of the error that callers get.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""
    detail: str = ""
    error: Any = None


class TransportFacts(Struct, frozen=True, kw_only=True):
    """What the other layers need to know of a transport besides its stream.

    Attributes:
        is_local: whether the child certainly sees the files of this machine, under the same paths. Default False.
        session_files: where the child finds the conversation that it resumes: "here" (default), in files of this
            machine; "sent", on the other side, where `place_transcripts` can put them; "there", on the other side.
        is_attached: whether another client has started the child, so that it cannot be replaced. Default False.
        may_choose_session_id: whether the child may have another session id than was asked for. Default False.
        request_prefix: prefix of the ids of control requests; another one than "ph" (default) where responses to
            another client's requests may still arrive.
        pid: process id of the child, or of what leads to it, on this machine. Default None: not known, not started,
            or no process.
        executable: path of the `claude` that was started on this machine; None (default) as for `pid`.
        session_id: of a child that has a conversation already when the transport has started. Default None.
    """

    is_local: bool = False
    session_files: SessionFiles = "here"
    is_attached: bool = False
    may_choose_session_id: bool = False
    request_prefix: str = "ph"
    pid: int | None = None
    executable: str | None = None
    session_id: str | None = None


class Delivery(Struct, frozen=True):
    """How much of what was sent has arrived, in bytes from the beginning of the child's input.

    Attributes:
        accepted: bytes given to `send`.
        acknowledged: bytes that the child has certainly got; at most `accepted`.
    """

    accepted: int
    acknowledged: int


STARTED_BEFORE = (
    "a transport serves one connection, and this one was started before: "
    "give `transport` a callable that makes one for each query or session"
)


class Transport(ABC):
    """A duplex stream of bytes to one other side. One instance serves one connection.

    Attributes:
        facts: what holds for the class, or for this instance; `start` replaces it when more is known.
    """

    facts: TransportFacts = TransportFacts()
    _was_started = False

    def _mark_started(self, *, is_closed: bool) -> None:
        """Mark as started; for `start`.

        Raises:
            UsageError: it was started before.
            anyio.ClosedResourceError: it was closed before.
        """
        if self._was_started:
            raise UsageError(STARTED_BEFORE)
        if is_closed:
            raise anyio.ClosedResourceError
        self._was_started = True

    @abstractmethod
    async def start(self, invocation: Invocation) -> None:
        """Start or connect to the other side. If it raises, nothing is left behind."""

    async def serve(self) -> None:  # noqa: B027 - most transports have no such work
        """Do background work (drain stderr, send heartbeats) until cancelled. The engine runs it once."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of `data`, in order with other calls. Concurrent calls never interleave their bytes."""

    @abstractmethod
    def receive(self) -> Awaitable[bytes]:
        """Return the next bytes, at most a few hundred KiB; b"" at the end of the output, and on every later call."""

    @abstractmethod
    async def end_input(self) -> None:
        """Signal the end of input: nothing more will be sent. Idempotent."""

    async def exit_info(self) -> ExitInfo:
        """Return how the other side ended. Call it after `receive` returned b""; it waits at most about a second."""
        return ExitInfo()

    @abstractmethod
    async def close(self) -> None:
        """End the other side and free all resources. Bounded in time, shielded from cancellation, idempotent."""

    async def detach(self) -> str:
        """Disconnect without ending the other side, free all local resources, and return the id to reconnect with.

        Raises:
            UsageError: this transport and the other side can only end together.
        """
        raise UsageError(
            f"a {type(self).__name__} cannot detach: its other side ends with it; use a WebSocketTransport"
        )

    @abstractmethod
    def health(self) -> Health:
        """Return whether the other side can be reached, from what is known now. Does no I/O."""

    def delivery(self) -> Delivery | None:
        """Return how much has arrived, so that a prompt that was lost can be sent again; None: not known."""
        return None

    def find_directory(self, cwd: str | None) -> str | None:
        """Return the working directory of a child with this `cwd`, as the child sees it; None: not known."""
        return cwd

    def place_transcripts(self, files: Mapping[str, bytes]) -> None:
        """Let the child find these files of conversations, if `facts.session_files` is "sent". Call it before `start`.

        Args:
            files: content, by path below the folder `projects` of the CLI's configuration.

        Raises:
            UsageError: this transport sends no files.
        """
        raise UsageError(f"a {type(self).__name__} sends no files of conversations")


class TransportWrapper(Transport):
    """Delegates to another transport. Derive from it, override what differs, and call `self.inner` there.

    Other attributes of the inner transport, such as the id of a session at its host, are available too.

    Args:
        inner: a transport that is not started; the wrapper starts and closes it.

    Attributes:
        inner: the same.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def facts(self) -> TransportFacts:  # pyright: ignore[reportIncompatibleVariableOverride] - they are the inner ones
        """See `Transport`."""
        return self.inner.facts

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        await self.inner.start(invocation)

    async def serve(self) -> None:
        """See `Transport`."""
        await self.inner.serve()

    async def send(self, data: bytes) -> None:
        """See `Transport`."""
        await self.inner.send(data)

    async def receive(self) -> bytes:
        """See `Transport`."""
        return await self.inner.receive()

    async def end_input(self) -> None:
        """See `Transport`."""
        await self.inner.end_input()

    async def detach(self) -> str:
        """See `Transport`."""
        return await self.inner.detach()

    async def exit_info(self) -> ExitInfo:
        """See `Transport`."""
        return await self.inner.exit_info()

    async def close(self) -> None:
        """See `Transport`."""
        await self.inner.close()

    def health(self) -> Health:
        """See `Transport`."""
        return self.inner.health()

    def delivery(self) -> Delivery | None:
        """See `Transport`."""
        return self.inner.delivery()

    def find_directory(self, cwd: str | None) -> str | None:
        """See `Transport`."""
        return self.inner.find_directory(cwd)

    def place_transcripts(self, files: Mapping[str, bytes]) -> None:
        """See `Transport`."""
        self.inner.place_transcripts(files)


CANNOT_PREWARM: Final = (
    "this transport keeps no children ready: give the agent transport=Pool(transport=…) of pilothouse_pool, "
    "with: pip install 'pilothouse[pool]'"
)


class TransportFactory(ABC):
    """Makes a transport for each child. As the option `transport`, any function does; this one has more to say."""

    @property
    def facts(self) -> TransportFacts:
        """What holds for all its transports, before they are started."""
        return TransportFacts()

    @abstractmethod
    def __call__(self) -> Transport:
        """Make a transport for one child."""

    def adapt_invocation(self, invocation: Invocation) -> Invocation:
        """Return how its transports start a child; default: unchanged."""
        return invocation

    async def prewarm(self, invocation: Invocation, count: int) -> None:
        """Start children like this until `count` are ready for the transports that it makes. For `Agent.prewarm`.

        Raises:
            OptionsError: such a child cannot be started in advance; by default, none can.
            PilothouseError: a child could not be started.
        """
        raise OptionsError(CANNOT_PREWARM, option="transport")


def find_facts(transport: object) -> TransportFacts:
    """Return what is known of a transport, a class of transports, or what makes some."""
    facts = getattr(transport, "facts", None)
    return facts if isinstance(facts, TransportFacts) else TransportFacts()


REQUIRED_METHODS: Final = tuple(sorted(Transport.__abstractmethods__))
"""Methods that an object needs to serve as a transport; the others are optional."""


def adapt_transport(candidate: Any) -> Transport:
    """Return `candidate` as a transport, adapted if its class does not derive from `Transport`.

    Raises:
        OptionsError: it lacks methods; the message names them.
    """
    if isinstance(candidate, Transport):
        return candidate
    missing = missing_methods(candidate)
    if missing:
        kind = type(candidate).__name__
        found = f"; {kind} has no {', '.join(missing)}: derive it from pilothouse.transports.Transport, or add these"
        if len(missing) == len(REQUIRED_METHODS):
            found = f", got {kind}"
        raise OptionsError(
            f"option 'transport': expected a Transport, or a callable that makes one{found}", option="transport"
        )
    return _AdaptedTransport(candidate)


def missing_methods(candidate: Any) -> list[str]:
    """Return the required methods of a transport that `candidate` lacks."""
    return [name for name in REQUIRED_METHODS if not callable(getattr(candidate, name, None))]


class _AdaptedTransport(TransportWrapper):
    """Adapts an object that has the required methods; missing optional ones behave as in `Transport`."""

    @property
    def facts(self) -> TransportFacts:  # pyright: ignore[reportIncompatibleVariableOverride] - as in the base class
        return find_facts(self.inner)

    async def serve(self) -> None:
        if hasattr(self.inner, "serve"):
            await self.inner.serve()

    async def exit_info(self) -> ExitInfo:
        return await self.inner.exit_info() if hasattr(self.inner, "exit_info") else ExitInfo()

    async def detach(self) -> str:
        return await (self.inner.detach() if hasattr(self.inner, "detach") else Transport.detach(self))

    def delivery(self) -> Delivery | None:
        return self.inner.delivery() if hasattr(self.inner, "delivery") else None

    def find_directory(self, cwd: str | None) -> str | None:
        return self.inner.find_directory(cwd) if hasattr(self.inner, "find_directory") else cwd
