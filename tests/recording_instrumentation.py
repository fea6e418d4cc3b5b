"""An instrumentation that writes down what it is told."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from pilothouse.instrumentation import CallEnd, CallStart, Observer, QueryEnd, QueryStart
from pilothouse.messages import ApiRetryMessage, Message

caller: ContextVar[str] = ContextVar("caller", default="nobody")
inside: ContextVar[str] = ContextVar("inside", default="nothing")


class Notes(Observer):
    """Everything about one query, in order."""

    def __init__(self, start: QueryStart, environ: Mapping[str, str | None]) -> None:
        self.start = start
        self.caller = caller.get()
        self.log: list[str] = []
        self.messages: list[Message] = []
        self.calls: list[tuple[CallStart, CallEnd]] = []
        self.ends: list[QueryEnd] = []
        self._environ = environ

    @property
    def end(self) -> QueryEnd:
        [end] = self.ends
        return end

    def environ(self) -> Mapping[str, str | None]:
        return self._environ

    @contextmanager
    def run_context(self) -> Generator[None]:
        token = inside.set(str(self.start.prompt))
        try:
            yield
        finally:
            inside.reset(token)

    def on_message(self, message: Message) -> None:
        self.log.append(message.type)
        self.messages.append(message)

    def on_retry(self, message: ApiRetryMessage) -> None:
        self.log.append(f"retry {message.attempt}")

    def on_call_start(self, call: CallStart) -> None:
        self.log.append(f"{call.kind} {call.name}")

    def on_call_end(self, call: CallStart, end: CallEnd) -> None:
        self.log.append(f"{call.kind} {end.outcome}")
        self.calls.append((call, end))

    def on_restart(self, reason: BaseException | None) -> None:
        self.log.append("restart")

    def on_end(self, end: QueryEnd) -> None:
        self.log.append("end")
        self.ends.append(end)


class Notebook:
    """The instrumentation."""

    def __init__(self, environ: Mapping[str, str | None] | None = None) -> None:
        self.queries: list[Notes] = []
        self._environ = environ or {}

    def query_started(self, start: QueryStart) -> Notes:
        notes = Notes(start, self._environ)
        self.queries.append(notes)
        return notes

    def session_environ(self) -> Mapping[str, str | None]:
        return {**self._environ, "OF_SESSION": caller.get()}

    @property
    def only(self) -> Notes:
        [notes] = self.queries
        return notes
