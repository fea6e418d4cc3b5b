"""What a caller of `Fleet` may give: journals by their address, and whole numbers. Owns the words of refusal."""

from __future__ import annotations

import os
from typing import Any, Protocol, cast

from pilothouse.client import Agent
from pilothouse.errors import UsageError
from pilothouse.fleet.journals.base import FleetJournalError, Journal
from pilothouse.fleet.journals.memory import MemoryJournal
from pilothouse.fleet.journals.postgres import PostgresJournal
from pilothouse.fleet.journals.sqlite import SqliteJournal

POSTGRES_SCHEMES = ("postgresql", "postgres")


def checked_count(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number.

    Raises:
        UsageError: it is none, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is a whole number of at least {least}, not {value!r}")
    return value


def check_workers(agent: Any, runner: Any) -> None:
    """That an agent, or in its place a runner, can do the work.

    Raises:
        UsageError: they cannot.
    """
    if agent is not None and not isinstance(agent, Agent):
        raise UsageError(f"expected an Agent, got {type(agent).__name__}")
    if runner is not None and (agent is not None or not hasattr(runner, "run")):
        raise UsageError("runner: an object with the method of a Runner, in the place of an agent")


def journal_of(given: Any) -> Journal:
    """The journal that `journal=` of a fleet stands for: None is one in memory, text is a path or an address.

    Raises:
        UsageError: it stands for none.
    """
    if given is None:
        return MemoryJournal()
    if isinstance(given, str | os.PathLike):
        scheme, colon, _ = str(given).partition("://")  # pyright: ignore[reportUnknownArgumentType]
        if colon and scheme in POSTGRES_SCHEMES:
            return PostgresJournal(str(given))  # pyright: ignore[reportUnknownArgumentType]
        if colon:
            raise UsageError(f"journal: a path, postgresql://… or a Journal; there is none for {scheme:.20}://…")
        return SqliteJournal(given)  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(given, "lease"):
        raise UsageError(f"journal: expected a path or a Journal, got {type(given).__name__}")
    return given


class Looked(Journal, Protocol):
    """A journal that one may look into without working on it."""

    async def look(self) -> None:
        """Open it for `status`, `get` and `rows`; nobody notices, and nothing changes.

        Raises:
            FleetJournalError: it is not there, or cannot be used.
        """
        ...


def looked_at(address: str) -> Looked:
    """The journal at a path or an address, to look at it.

    Raises:
        UsageError: there is no such kind of journal.
    """
    return cast("Looked", journal_of(address))  # all that have an address can be looked at


def only_error(error: BaseException) -> Exception:
    """The error itself, out of the groups that hold nothing else; a journal that is lost is told of once."""
    found = _parts(error)
    is_one = len(found) == 1 or all(isinstance(one, FleetJournalError) for one in found)
    return cast("Exception", found[0] if is_one else error)


def _parts(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [one for part in group.exceptions for one in _parts(part)]
