"""A session that the host itself drives for REST clients: a `Session` whose output goes to the journal.

Owns the prompts and their results. When a child ends, for any reason, the next prompt starts another one that resumes
the conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from pilothouse.client import Query, QueryResult
from pilothouse.client.prompt import Prompt
from pilothouse.client.sessions import Session
from pilothouse.errors import PilothouseError, SessionClosedError
from pilothouse.options import Invocation, Options
from pilothouse.server.hosted import HostedSession
from pilothouse.server.journal import OutputJournal, SessionRecord
from pilothouse.transports import Ending, Transport
from pilothouse.transports.wrapper import TransportWrapper

if TYPE_CHECKING:
    from pilothouse.server.output import Output

_log = logging.getLogger("pilothouse.server")

FAILED = "query_failed"
"""Subtype of the system message that the output gets when a prompt has failed."""

Admit = Callable[[Invocation], Invocation]


class JournaledTransport(TransportWrapper):
    """A transport whose output is journaled before it is returned.

    Args:
        inner: the transport to the child; not started.
        admit: checks and completes the invocation; raises if it is refused.
        keep: journals bytes.
        output: the stream of the session.
    """

    def __init__(self, inner: Transport, admit: Admit, keep: Callable[[bytes], Any], output: Output) -> None:
        super().__init__(inner)
        self._admit = admit
        self._keep = keep
        self._output = output

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        if not await self._output.ends_line():
            await self._keep(b"\n")  # the previous child died in the middle of a line
        await self.inner.start(self._admit(invocation))

    async def receive(self) -> bytes:
        """See `Transport`."""
        data = await self.inner.receive()
        if data:
            await self._keep(data)
        return data


class PromptedSession(HostedSession):
    """A conversation that continues with the next prompt, even if its child has ended.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        options: settings of the conversation, without `resume`; None if they are no longer known.
        admit: checks and completes the invocation of each child.
        make_transport: makes the transport to a child.
    """

    def __init__(
        self,
        journal: OutputJournal,
        record: SessionRecord,
        options: Options | None,
        *,
        admit: Admit,
        make_transport: Callable[[], Transport],
    ) -> None:
        super().__init__(journal, record)
        self._options = options
        self._admit = admit
        self._make_transport = make_transport
        self._session: Session | None = None
        self._queries: list[Query] = []
        self._changing = anyio.Lock()
        self.last_error: str | None = None
        self.result: Mapping[str, Any] | None = None

    def _transport(self) -> Transport:
        return JournaledTransport(self._make_transport(), self._admit, self.keep_output, self.output)

    def begin(self) -> None:
        """Prepare to start a child, which resumes the conversation if there is one.

        Raises:
            SessionClosedError: the settings are no longer known.
            OptionsError: the settings are invalid.
        """
        if self._session is not None:
            return
        if self._options is None:
            raise SessionClosedError(
                "this session was started with keys, which are not kept, or the host does not take its settings any "
                "more: start another one, with "
                f"resume={self.record.conversation!r}"
            )
        options = self._options.with_(transport=self._transport)
        if self.record.conversation:
            changes: dict[str, Any] = dict.fromkeys(("session_id", "continue_conversation", "fork_session"))
            options = options.with_(**changes, resume=self.record.conversation)
        self._session = Session(options)

    async def start(self) -> None:
        """Start the child now.

        Raises:
            PilothouseError: the child cannot be started.
        """
        self.begin()
        assert self._session is not None
        await self._session.start()
        await self._went_live()

    async def _went_live(self) -> None:
        if self.record.state != "live":
            self.record.state, self.record.ending = "live", None
            await self.journal.update(self.id, state="live", ending=None)

    @property
    def waiting(self) -> int:
        """Number of prompts without a result so far."""
        return len(self._queries)

    async def ask(self, prompt: Prompt) -> Query:
        """Accept a prompt. The caller must pass the returned query to `answer`.

        Raises:
            UsageError: the prompt cannot be sent.
            SessionClosedError: see `begin`.
        """
        async with self._changing:  # if the child is just being ended, wait; then another one starts
            self.begin()
            assert self._session is not None
            query = self._session.query(prompt)
        self._queries.append(query)
        self.used()
        return query

    async def answer(self, query: Query) -> None:
        """Run a prompt to its result. A failure is reported in the output and kept in `last_error`."""
        try:
            await self._went_live()
            result = await query
            await self._learn(result.session_id)
            self.result, self.last_error = _told(result), None if result.error is None else str(result.error)
        except Exception as error:  # noqa: BLE001 - no task waits for this one: the output reports it
            await self._fail(query, error)
        finally:
            self._queries.remove(query)
            self.used()

    async def _fail(self, query: Query, error: Exception) -> None:
        if not isinstance(error, PilothouseError):
            _log.error("a prompt of session %s failed", self.id, exc_info=error)
        self.last_error = str(error) if isinstance(error, PilothouseError) else type(error).__name__
        line: dict[str, Any] = {"type": "system", "subtype": FAILED, "error": self.last_error}
        line["error_type"] = type(error).__name__
        try:
            start = b"" if await self.output.ends_line() else b"\n"
            await self.keep_output(start + msgspec.json.encode(line) + b"\n")
        except PilothouseError as full:
            _log.error("session %s: %s", self.id, full)

    async def _learn(self, conversation: str | None) -> None:
        # With a result the conversation is saved and can be resumed; not before.
        if conversation and conversation != self.record.conversation:
            self.record.conversation = conversation
            await self.journal.update(self.id, conversation=conversation)

    async def interrupt(self) -> None:
        """Interrupt the current turn; returns at once if none runs."""
        if self._session is not None:
            await self._session.interrupt()

    async def stop(self, reason: str) -> None:
        """End the child. The next prompt starts another."""
        async with self._changing:
            if self._session is not None:
                await self._session.close()
            if self.record.state == "live":
                await self.keep_ending(Ending(detail=reason))
            self._session = None

    def close_output(self) -> None:
        """End the output for its readers, because the session is removed."""
        self.output.finish()

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self._session is not None

    @property
    def busy(self) -> bool:
        """Whether a prompt is running or queued."""
        return bool(self._queries) or (self._session is not None and self._session.state in ("starting", "running"))

    @property
    def state(self) -> str:
        """The state in a word: "dormant", "running" or "idle"."""
        return "dormant" if self._session is None else "running" if self.busy else "idle"

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST."""
        return {**super().describe(), "waiting": self.waiting, "last_result": self.result, "error": self.last_error}


def _told(result: QueryResult) -> dict[str, Any]:
    return {
        "is_success": result.is_success,
        "text": result.text,
        "structured": result.structured,
        "denied": [str(denial.tool_name) for denial in result.permission_denials],
        "turns": result.turns,
        "cost_usd": result.cost_usd,
        "duration_ms": result.duration_ms,
    }
