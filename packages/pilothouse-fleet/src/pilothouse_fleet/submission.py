"""Converts items to runs, and validates the arguments of a `Fleet`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import msgspec

from pilothouse.client import OutputSchema
from pilothouse.client.agent import check_agent
from pilothouse.errors import UsageError
from pilothouse.options import TABLE, Options
from pilothouse.support import mask, to_json_values
from pilothouse_fleet.journals.sqlite import FleetJournalError, SqliteJournal
from pilothouse_fleet.run import Run, digest_prompt

MAX_KEY_CHARS = 512

_MISSING = object()


def make_run_factory(
    output_type: Any,
    *,
    is_persistent: bool,
    key: Any = None,
    prompt: Any = None,
    options: Any = None,
    priority: Any = 0,
) -> Callable[[Any, int, float], Run]:
    """Make the function that converts an item to a run; arguments as for `Fleet.map`.

    Its arguments are the item, the item's number, which is the default key without a journal, and the time.

    Raises:
        UsageError: an argument is not valid. The function raises it for an item that is not valid.
    """
    get_prompt = _make_getter(prompt, "prompt", _get_prompt)
    get_key = None if key is None else _make_getter(key, "key", str)
    get_settings = partial(validate_settings, is_persistent=is_persistent)
    get_options: Callable[[Any], Any] | None = options if callable(options) else None
    all_settings = {} if callable(options) else get_settings(options)
    # Another process, which does not know the type, may execute the run.
    schema = OutputSchema.from_type(output_type).schema if is_persistent and output_type is not None else None

    def make_run(item: Any, number: int, now: float) -> Run:
        checked = validate_prompt(get_prompt(item))
        settings = all_settings if get_options is None else get_settings(get_options(item))
        if schema is not None:
            settings = {**settings, "json_schema": dict(schema)}
        if get_key is not None:
            name = validate_key(get_key(item))
        else:
            name = digest_prompt(checked, settings) if is_persistent else str(number)
        rank = priority(item) if callable(priority) else priority
        if not isinstance(rank, int):
            raise UsageError(f"the priority of a run is a whole number, not {rank!r}")
        return Run(key=name, prompt=checked, settings=settings, priority=rank, created=now)

    return make_run


def check_items(items: Any) -> None:
    """Raise UsageError unless `items` can be the items of `Fleet.map`; a text would be a run for each character."""
    is_iterable = hasattr(items, "__iter__") or hasattr(items, "__aiter__")
    if isinstance(items, str | bytes | Mapping) or not is_iterable:
        kind = type(cast("object", items)).__name__
        raise UsageError(f"items: expected a list, or another iterable, of prompts, got {kind}; put one into a list")


def validate_key(key: object) -> str:
    """Return `key` as text."""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS or "\0" in key or not key.isprintable():
        raise UsageError(
            f"the key of a run is a whole number, or printable text of at most {MAX_KEY_CHARS} characters: {key!a:.200}"
        )
    return str.__str__(key)


def validate_prompt(prompt: object) -> str | list[Any]:
    """Return `prompt` as plain text or plain JSON values."""
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
    """Return the options of one run, by name. A journal (`is_persistent`) keeps only JSON without keys."""
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


def _make_getter(
    source: Callable[[Any], Any] | str | None, name: str, default: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Make the function that gets a part of an item: the given function, or one that reads the named field."""
    if source is None:
        return default
    if isinstance(source, str):
        return partial(_get_field, source)
    if callable(source):
        return source
    raise UsageError(f"{name}= is a function of an item, or the name of a field of it, not {type(source).__name__}")


def _get_prompt(item: Any) -> Any:
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


def check_agent_or_runner(agent: Any, runner: Any) -> None:
    """Check that an agent, or a runner instead of it, can execute runs."""
    if agent is not None:
        check_agent(agent)
    if runner is not None and (agent is not None or not hasattr(runner, "run")):
        raise UsageError("runner: an object with the method of a Runner, instead of an agent")


def make_journal(journal: Any) -> SqliteJournal:
    """Make the journal for the `journal` argument of a fleet."""
    if isinstance(journal, str | os.PathLike):
        scheme, colon, _ = str(journal).partition("://")  # pyright: ignore[reportUnknownArgumentType]
        if colon:
            raise UsageError(f"journal: the path of a file; there is none for {scheme:.20}://…")
    elif isinstance(journal, SqliteJournal):
        return journal
    elif journal is not None:
        raise UsageError(f"journal: expected a path, got {type(journal).__name__}")
    return SqliteJournal(journal)  # pyright: ignore[reportUnknownArgumentType]


@asynccontextmanager
async def open_journal_for_reading(path: str) -> AsyncGenerator[SqliteJournal]:
    """Open the journal at a path, without any effect on it or its users.

    Raises:
        UsageError: the path is the address of a server.
        FleetJournalError: the journal does not exist or cannot be used.
    """
    journal = make_journal(path)
    await journal.open_for_reading()
    try:
        yield journal
    finally:
        await journal.close()


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
