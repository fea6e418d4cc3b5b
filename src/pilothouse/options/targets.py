"""Where the value of an option goes. Plain data: `render` acts on it, the docs and the drift test read it.

Owns the kinds of places and their description in words. Knows no option and no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct


class Flag(Struct, frozen=True):
    """One argument `--name=value`; items of a list are joined with commas."""

    name: str


class Names(Struct, frozen=True):
    """`--name=a,b`; a list that is too long for one argument is spread over several, which the CLI adds up."""

    name: str


class PathFlag(Struct, frozen=True):
    """One argument `--name=path`; a leading `~` is the home directory."""

    name: str


class Repeated(Struct, frozen=True):
    """`--name=path` once for each item."""

    name: str


class Switch(Struct, frozen=True):
    """`--name`, present when the value is `on`."""

    name: str
    on: bool = True


class SwitchOrFlag(Struct, frozen=True):
    """`--name` for True, `--name=value` for text, nothing for False."""

    name: str


class Text(Struct, frozen=True):
    """`--name=value` while it is short.

    Longer text goes into a private file, passed as `--file_flag=path`, or into the initialize request under `key`,
    whichever of the two there is.
    """

    name: str
    file_flag: str = ""
    key: str = ""


class Config(Struct, frozen=True):
    """Text or a path goes as `--name=value`; a mapping, which may hold secrets, as a private JSON file.

    `wrap` is the key that a mapping is put under.
    """

    name: str
    wrap: str | None = None


class Json(Struct, frozen=True):
    """A JSON value: `--name={...}` while it is short, else the initialize request carries it under `key`.

    `switches` are flags that make the CLI look for it there. A `private` one may hold secrets: it is never an
    argument. In the argv form it is a private file; one with `switches` has no such form, as the CLI reads no file.
    """

    name: str
    key: str
    private: bool = False
    switches: tuple[str, ...] = ()


class Initialize(Struct, frozen=True):
    """A key of the initialize request; the argv form has none."""

    key: str


class EnvVar(Struct, frozen=True):
    """An environment variable of the child. Keys only ever travel this way. `path`: a leading `~` is the home."""

    name: str
    path: bool = False


class EnvSwitch(Struct, frozen=True):
    """A variable that is `value` when the option is `on`, and removed when it is not."""

    name: str
    value: str = "1"
    on: bool = True


class Merged(Struct, frozen=True):
    """Becomes a part of another option before rendering."""

    option: str


class Sdk(Struct, frozen=True):
    """Used by pilothouse itself. `wire` is the word of the protocol that it makes it say, if any."""

    wire: str = ""


class Parts(Struct, frozen=True):
    """Goes to several places: `split` says which part of a value goes where; `targets` are all that it may name."""

    split: Callable[[Any], Iterable[tuple[Target, Any]]]
    targets: tuple[Target, ...]


Target = (
    Flag
    | Names
    | PathFlag
    | Repeated
    | Switch
    | SwitchOrFlag
    | Text
    | Config
    | Json
    | Initialize
    | EnvVar
    | EnvSwitch
    | Merged
    | Sdk
    | Parts
)


def flags_of(target: Target) -> tuple[str, ...]:
    """Every flag that `target` can put on the command line, without dashes."""
    if isinstance(target, Parts):
        return tuple(dict.fromkeys(flag for part in target.targets for flag in flags_of(part)))
    if isinstance(target, Text):
        return tuple(filter(None, (target.name, target.file_flag)))
    if isinstance(target, Json):
        return target.switches if target.private and target.switches else (target.name, *target.switches)
    if isinstance(target, Flag | Names | PathFlag | Repeated | Switch | SwitchOrFlag | Config):
        return (target.name,)
    return ()


def keys_of(target: Target) -> tuple[str, ...]:
    """Every key that `target` can put into the initialize request."""
    if isinstance(target, Parts):
        return tuple(dict.fromkeys(key for part in target.targets for key in keys_of(part)))
    return (target.key,) if isinstance(target, Text | Json | Initialize) and target.key else ()


def variables_of(target: Target) -> tuple[str, ...]:
    """Every environment variable that `target` can set or remove."""
    if isinstance(target, Parts):
        return tuple(dict.fromkeys(name for part in target.targets for name in variables_of(part)))
    return (target.name,) if isinstance(target, EnvVar | EnvSwitch) else ()


def describe(target: Target) -> str:
    """Where a value goes, in words, for the documentation."""
    return _DESCRIBED[type(target)](target)


def _parts(target: Any) -> str:
    places = [f"`--{flag}`" for flag in flags_of(target)]
    places += [f"handshake, `{key}`" for key in keys_of(target)]
    places += [f"environment, `{name}`" for name in variables_of(target)]
    return "; ".join(places)


def _text(target: Any) -> str:
    long = f"a private file, `--{target.file_flag}`" if target.file_flag else f"the handshake as `{target.key}`"
    return f"`--{target.name}`; long text in {long}"


def _json(target: Any) -> str:
    if target.private and target.switches:
        return f"handshake, `{target.key}`"
    if target.private:
        return f"handshake, `{target.key}`; in the argv form a private file, `--{target.name}`"
    return f"`--{target.name}`; a long one in the handshake as `{target.key}`"


def _flag(target: Any) -> str:
    return f"`--{target.name}`"


_DESCRIBED: dict[type, Callable[[Any], str]] = {
    Flag: _flag,
    Names: _flag,
    PathFlag: _flag,
    Repeated: _flag,
    Switch: _flag,
    SwitchOrFlag: _flag,
    Text: _text,
    Config: lambda target: f"`--{target.name}`; a mapping goes in a private file",
    Json: _json,
    Initialize: lambda target: f"handshake, `{target.key}`",
    EnvVar: lambda target: f"environment, `{target.name}`",
    EnvSwitch: lambda target: f"environment, `{target.name}`",
    Merged: lambda target: f"part of `{target.option}`",
    Sdk: lambda target: f"pilothouse; `{target.wire}` of each prompt" if target.wire else "pilothouse",
    Parts: _parts,
}
