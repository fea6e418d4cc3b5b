"""Converts a caller's items to runs: validates keys, prompts and options, and makes default keys. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from pilothouse.client.structured_output import OutputSchema
from pilothouse.errors import StructuredOutputError, UsageError
from pilothouse.fleet.run import Run
from pilothouse.messages.base import to_json_values
from pilothouse.messages.json_lines import to_plain_scalar
from pilothouse.options import TABLE, Options
from pilothouse.options.secrets import mask

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
            key = prompt_digest(prompt, settings) if self._is_persistent else str(number)
        priority = self._priority(item) if callable(self._priority) else self._priority
        if not isinstance(priority, int):
            raise UsageError(f"the priority of a run is a whole number, not {priority!r}")
        return Run(key=key, prompt=prompt, settings=settings, priority=priority, created=now)


def decode_output(run: Run, output_type: Any) -> Run:
    """Restore the typed output of a run that was read from a journal."""
    result = run.result
    if output_type is not None and run.is_success and result is not None and result.output is None:
        try:
            result.output, result.structured = OutputSchema.from_type(output_type).read(result.result)
        except StructuredOutputError as error:
            return replace(run, state="failed", error=error)
    return run


def prompt_digest(prompt: str | Sequence[Any], settings: Mapping[str, Any] | None = None) -> str:
    """Return a short digest of a prompt and its settings; the same in every process.

    Raises:
        UsageError: a value cannot be written as JSON.
    """
    try:
        data = msgspec.json.encode([prompt, settings], enc_hook=to_plain_scalar, order="deterministic")
    except (TypeError, ValueError, UnicodeError) as error:
        raise UsageError(f"a prompt of a fleet is text or JSON: {error}") from error
    return hashlib.sha256(data).hexdigest()[:32]


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
    told = "empty" if isinstance(prompt, str | list | tuple) else type(prompt).__name__  # pyright: ignore[reportUnknownArgumentType]
    raise UsageError(f"the prompt of a run is text or a list of content blocks, not {told}")


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
