"""How runs get into the journal of a fleet: from items of callers, and from other programs.

Converts items to runs (`ItemMapping`), decides which options of runs of other programs are accepted
(`RunOptionsPolicy`), adds and requeues runs (`Submitter`), and validates the arguments of a `Fleet`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, cast

import anyio
import msgspec

from pilothouse.client import Agent
from pilothouse.client.structured_output import OutputSchema
from pilothouse.errors import OptionsError, UsageError
from pilothouse.fleet.journals.base import FleetJournalError, Journal, MemoryJournal
from pilothouse.fleet.journals.postgres import PostgresJournal
from pilothouse.fleet.journals.sqlite import SqliteJournal
from pilothouse.fleet.results import Items, ResultBuffer, RunSubscribers, iterate_batches
from pilothouse.fleet.run import Run, digest_prompt
from pilothouse.messages.base import to_json_values
from pilothouse.options import TABLE, Options
from pilothouse.options.secrets import mask
from pilothouse.options.value_types import MODES_BY_PERMISSIVENESS, permits_more

MAX_KEY_CHARS = 512

_MISSING = object()


class ItemMapping:
    """Converts items as the arguments of `Fleet.map` say. Arguments as there.

    Args:
        is_persistent: whether a journal keeps the runs.

    Raises:
        UsageError: an argument is not valid.
    """

    def __init__(
        self, key: Any, prompt: Any, options: Any, output_type: Any, priority: Any, *, is_persistent: bool
    ) -> None:
        self._prompt = make_getter(prompt, "prompt", get_prompt)
        self._key = None if key is None else make_getter(key, "key", str)
        self._options: Callable[[Any], Any] | None = options if callable(options) else None
        self._settings = {} if callable(options) else validate_settings(options, is_persistent=is_persistent)
        # Another process, which does not know the type, may execute the run.
        self._schema = OutputSchema.from_type(output_type).schema if is_persistent and output_type is not None else None
        self._priority = priority
        self._is_persistent = is_persistent

    def make_run(self, item: Any, number: int, now: float) -> Run:
        """Make the run of one item.

        Args:
            item: the caller's item.
            number: the item's number, which is the default key without a journal.
            now: the time, in Unix seconds.

        Raises:
            UsageError: its prompt, key, priority or options are not valid.
        """
        prompt = validate_prompt(self._prompt(item))
        settings = self._settings
        if self._options is not None:
            settings = validate_settings(self._options(item), is_persistent=self._is_persistent)
        if self._schema is not None:
            settings = {**settings, "json_schema": dict(self._schema)}
        if self._key is not None:
            key = validate_key(self._key(item))
        else:
            key = digest_prompt(prompt, settings) if self._is_persistent else str(number)
        priority = self._priority(item) if callable(self._priority) else self._priority
        if not isinstance(priority, int):
            raise UsageError(f"the priority of a run is a whole number, not {priority!r}")
        return Run(key=key, prompt=prompt, settings=settings, priority=priority, created=now)


def validate_key(key: object) -> str:
    """Return `key` as text.

    Raises:
        UsageError: the key is neither printable text nor a whole number, is empty, or is too long.
    """
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS or "\0" in key or not key.isprintable():
        raise UsageError(
            f"the key of a run is a whole number, or printable text of at most {MAX_KEY_CHARS} characters: {key!a:.200}"
        )
    return str.__str__(key)


def validate_prompt(prompt: object) -> str | list[Any]:
    """Return `prompt` as plain text or plain JSON values.

    Raises:
        UsageError: the prompt is neither text nor a list of content blocks, or is empty.
    """
    if isinstance(prompt, str) and prompt.strip():
        return str.__str__(prompt)
    if isinstance(prompt, list | tuple) and prompt:
        try:
            return to_json_values(list(prompt))  # pyright: ignore[reportUnknownArgumentType]
        except TypeError as error:
            raise UsageError(f"the prompt of a run: {error}") from error
    kind = "empty" if isinstance(prompt, str | list | tuple) else type(prompt).__name__  # pyright: ignore[reportUnknownArgumentType]
    raise UsageError(f"the prompt of a run is text or a list of content blocks, not {kind}")


def validate_settings(options: Options | Mapping[str, Any] | None, *, is_persistent: bool) -> dict[str, Any]:
    """Return the options of one run, by name.

    Args:
        options: the caller's options.
        is_persistent: whether a journal keeps the options, so that they must be JSON and contain no keys.

    Raises:
        UsageError: unknown or invalid options, or options that a journal cannot keep.
    """
    if options is None:
        return {}
    layer = options if isinstance(options, Options) else Options.layer(**options)
    values = layer.as_dict()
    if not is_persistent:
        return values
    for name, value in values.items():
        if TABLE[name].secret:
            raise UsageError(f"option {name!r} may hold keys, which no journal keeps: set it on the agent of the fleet")
        try:
            values[name] = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(value, enc_hook=str)))
            Options.layer(**{name: values[name]})
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"option {name!r} cannot be kept in a journal: set it on the agent of the fleet"
            ) from error
        # A schema may have fields named like keys, but contains no keys.
        if name != "json_schema" and mask({name: values[name]}) != {name: values[name]}:
            raise UsageError(
                f"option {name!r} holds what may be a key, which no journal keeps: set it on the agent of the fleet"
            )
    return values


def make_getter(
    source: Callable[[Any], Any] | str | None, name: str, default: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Make the function that gets a part of an item: the given function, or one that reads the named field.

    Raises:
        UsageError: `source` is neither.
    """
    if source is None:
        return default
    if isinstance(source, str):
        return partial(_get_field, source)
    if callable(source):
        return source
    raise UsageError(f"{name}= is a function of an item, or the name of a field of it, not {type(source).__name__}")


def get_prompt(item: Any) -> Any:
    """Return the default prompt of an item: the item itself, or its field "prompt"."""
    if isinstance(item, str | list | tuple):
        return cast("Any", item)
    with suppress(UsageError):
        return _get_field("prompt", item)
    raise UsageError(
        f"an item of a fleet is a prompt, or has one as .prompt, or prompt= says where it is: {item!r:.200}"
    )


def _get_field(name: str, item: Any) -> Any:
    if isinstance(item, Mapping):
        found = cast("Mapping[str, Any]", item).get(name, _MISSING)
    else:
        found = getattr(item, name, _MISSING)
    if found is _MISSING:
        raise UsageError(f"this item has no {name!r}: {item!r:.200}")
    return found


AcceptedOptions = Collection[str] | Literal["all"]

_REQUEST_OPTIONS = frozenset(
    {
        "agent",
        "append_subagent_system_prompt",
        "append_system_prompt",
        "betas",
        "client_app",
        "continue_conversation",
        "cwd",
        "debug",
        "enable_file_checkpointing",
        "fork_session",
        "json_schema",
        "max_line_bytes",
        "per_task_stop_affordance",
        "permission_prompts",
        "persist_session",
        "plan_mode_instructions",
        "prompt_via",
        "restart",
        "resume",
        "resume_drops_turn",
        "resume_session_at",
        "session_id",
        "session_lease",
        "session_store_flush",
        "skills",
        "supported_dialog_kinds",
        "system_prompt",
        "title",
        "tool_bridge",
        "tool_config",
    }
)
"""Options that a run may set although an untrusted file may not: they define the request and the form of the answer.
"""
_RESTRICTING_OPTIONS = frozenset({"bare", "isolation", "restricted", "safe_mode"})
"""Options that a run may switch on, but not off."""


class RunOptionsPolicy:
    """Which options a fleet accepts from runs of other programs.

    Args:
        accepts: names of options accepted although they run, redirect or permit something; or "all".
        permission_mode: the highest permission mode; None: that of the worker's agent, or "default".
        starts_runs: whether this program starts runs; otherwise the settings of its own runs are not kept.

    Attributes:
        trusts_journal: whether all runs keep all their options, because the caller requested what is left in the
            journal.

    Raises:
        UsageError: there is no such option or mode.
    """

    def __init__(
        self, accepts: AcceptedOptions = (), permission_mode: str | None = None, *, starts_runs: bool = True
    ) -> None:
        names = set(TABLE) if accepts == "all" else {accepts} if isinstance(accepts, str) else set(accepts)
        if unknown := names - set(TABLE):
            raise UsageError(f"accepts: names of options, or 'all'; there is none called {min(unknown)!r}")
        if permission_mode is not None and permission_mode not in MODES_BY_PERMISSIVENESS:
            raise UsageError(
                f"max_permission_mode: expected one of {', '.join(MODES_BY_PERMISSIVENESS)}, got {permission_mode!r}"
            )
        self._accepts = names
        self._permission_mode = permission_mode
        self._starts_runs = starts_runs
        self._own_settings: dict[str, Mapping[str, Any]] = {}
        self.trusts_journal = False

    def register_own(self, runs: Iterable[Run]) -> None:
        """Register runs that this program adds: they keep their current options."""
        if self._starts_runs:
            self._own_settings |= {run.key: run.settings for run in runs if run.settings}

    def discard(self, key: str) -> None:
        """Forget the settings of an ended run."""
        self._own_settings.pop(key, None)

    def check(self, run: Run, get_worker_options: Callable[[], Options]) -> None:
        """Check the options of a run that is to start.

        Args:
            run: the run from the journal.
            get_worker_options: returns the options of the agent that executes it.

        Raises:
            OptionsError: an option is not accepted here.
        """
        if not run.settings or self.trusts_journal or self._own_settings.get(run.key) == run.settings:
            return
        given, own = Options.layer(**dict(run.settings)).as_dict(), get_worker_options().as_dict()
        for name, value in given.items():
            if name not in self._accepts and (why := self._explain_refusal(name, value, own)):
                raise OptionsError(
                    f"option {name!r} of run {run.key!r} is not accepted here: {why}. Set it on the agent of the "
                    f"worker, or accept it from the journal: accepts=[{name!r}], --accept {name}",
                    option=name,
                )

    def _explain_refusal(self, name: str, value: Any, own: Mapping[str, Any]) -> str:
        """Return why an option is not accepted; "" if it is."""
        if value is None or (name in own and own[name] == value):
            return ""
        if name == "permission_mode":
            highest = self._permission_mode or own.get(name) or "default"
            return f"the worker goes up to {highest!r}" if permits_more(value, highest) else ""
        if name in _REQUEST_OPTIONS:
            return ""
        if name in _RESTRICTING_OPTIONS:
            return "" if value else "it removes a restriction of the worker"
        may_replace = TABLE[name].untrusted
        if may_replace is None:
            return "only the worker sets what runs, redirects or permits something"
        return "" if name not in own or may_replace(value, own[name]) else "it is less strict than that of the worker"


T = TypeVar("T")

ENQUEUE_BATCH_SIZE = 500
"""Number of list items that are added together when no reader waits."""
POLL_SECONDS = 1.0
"""Interval in seconds at which a worker looks for new runs in the journal."""


class Submitter:
    """Adds runs to the journal.

    Args:
        journal: the journal.
        subscribers: receive runs that have already ended.
        now: returns the time, in Unix seconds.
        wake: called after runs were added.
        run_policy: registers the runs added here.
    """

    def __init__(
        self,
        journal: Journal,
        subscribers: RunSubscribers,
        now: Callable[[], float],
        wake: Callable[[], object],
        run_policy: RunOptionsPolicy,
    ) -> None:
        self._journal = journal
        self._subscribers = subscribers
        self._now = now
        self._wake = wake
        self._run_policy = run_policy
        self._number = 0

    def make_run_factory(
        self, key: Any, prompt: Any, options: Any, output_type: Any, priority: Any
    ) -> Callable[[Any], Run]:
        """Make the function that converts an item to a run; arguments as for `Fleet.map`.

        Raises:
            UsageError: an argument is not valid.
        """
        mapping = ItemMapping(key, prompt, options, output_type, priority, is_persistent=self._journal.is_persistent)

        def make(item: Any) -> Run:
            self._number += 1
            return mapping.make_run(item, self._number, self._now())

        return make

    async def fill(self, buffer: ResultBuffer, items: Items[T], make_run: Callable[[T], Run], output_type: Any) -> None:
        """Add items as fast as `buffer` is read."""
        async with aclosing(iterate_batches(items, buffer.wait_for_space)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], buffer, output_type)
        buffer.mark_filled()

    async def enqueue(self, items: Items[T], make_run: Callable[[T], Run]) -> int:
        """Add all items; return their number."""
        count = 0

        async def get_batch_size() -> int:
            return ENQUEUE_BATCH_SIZE

        async with aclosing(iterate_batches(items, get_batch_size)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def add(self, runs: list[Run], buffer: ResultBuffer | None, output_type: Any) -> list[Run]:
        """Add runs that `buffer` waits for; return each in its current state."""
        for run in runs:
            self._subscribers.expect(run.key, buffer, output_type)
        self._run_policy.register_own(runs)
        try:
            there = await self._journal.add(runs)
        except BaseException:
            for run in runs:
                self._subscribers.unsubscribe(run.key, buffer)
            raise
        for run in there:
            if run.is_ended:
                self._subscribers.deliver(run)
        self._wake()
        return there

    async def requeue_all(self, buffer: ResultBuffer, *, failed: bool) -> None:
        """Requeue all unfinished or all failed runs; `buffer` receives every end."""
        buffer.scope = "all"
        self._run_policy.trusts_journal = True
        await self._journal.requeue(failed=failed)
        buffer.is_draining = True
        self._wake()

    async def work(self, buffer: ResultBuffer, *, until_empty: bool) -> None:
        """Requeue all unfinished runs of the journal, now and periodically, until `buffer` is finished."""
        while not buffer.is_finished:
            await self._journal.requeue(failed=False)  # runs of other processes that stopped waiting
            buffer.is_draining = until_empty
            self._wake()
            with anyio.move_on_after(POLL_SECONDS):
                await buffer.wait_closing()

    async def find_finished_scopes(self) -> Collection[str]:
        """Return the scopes that are finished: nothing runs in any process, and no run of that scope waits."""
        due = await self._journal.next_due()  # checked before and after: meanwhile a run may be leased or requeued
        status = await self._journal.status()
        if not status.left:
            return ("own", "all")
        is_idle = due is None and not status.running and not status.interrupted
        return ("all",) if is_idle and await self._journal.next_due() is None else ()


POSTGRES_SCHEMES = ("postgresql", "postgres")


def validate_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Validate a whole number.

    Raises:
        UsageError: `value` is not a whole number, or is less than `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} is a whole number of at least {minimum}, not {value!r}")
    return value


def check_agent_or_runner(agent: Any, runner: Any) -> None:
    """Check that an agent, or a runner instead of it, can execute runs.

    Raises:
        UsageError: neither can, or both are given.
    """
    if agent is not None and not isinstance(agent, Agent):
        raise UsageError(f"expected an Agent, got {type(agent).__name__}")
    if runner is not None and (agent is not None or not hasattr(runner, "run")):
        raise UsageError("runner: an object with the method of a Runner, instead of an agent")


def make_journal(journal: Any) -> Journal:
    """Make the journal for the `journal` argument of a fleet: None: in memory; text: a path or an address.

    Raises:
        UsageError: the value is not a journal.
    """
    if journal is None:
        return MemoryJournal()
    if isinstance(journal, str | os.PathLike):
        scheme, colon, _ = str(journal).partition("://")  # pyright: ignore[reportUnknownArgumentType]
        if colon and scheme in POSTGRES_SCHEMES:
            return PostgresJournal(str(journal))  # pyright: ignore[reportUnknownArgumentType]
        if colon:
            raise UsageError(f"journal: a path, postgresql://… or a Journal; there is none for {scheme:.20}://…")
        return SqliteJournal(journal)  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(journal, "lease"):
        raise UsageError(f"journal: expected a path or a Journal, got {type(journal).__name__}")
    return journal


class ReadableJournal(Journal, Protocol):
    """A journal that can also be opened for reading only."""

    async def open_for_reading(self) -> None:
        """Open the journal for `status`, `get` and `rows`, without any effect on it or its users.

        Raises:
            FleetJournalError: the journal does not exist or cannot be used.
        """
        ...


def make_readable_journal(address: str) -> ReadableJournal:
    """Make the journal at a path or an address, for reading.

    Raises:
        UsageError: there is no such kind of journal.
    """
    return cast("ReadableJournal", make_journal(address))  # every journal with an address is readable


def unwrap_error(error: BaseException) -> Exception:
    """Return the only error of nested groups, or one of several journal errors; otherwise the group itself."""
    found = _flatten_group(error)
    is_one = len(found) == 1 or all(isinstance(one, FleetJournalError) for one in found)
    return cast("Exception", found[0] if is_one else error)


def _flatten_group(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [one for part in group.exceptions for one in _flatten_group(part)]
