"""Settings from outside the program: the table of a configuration file, and `PILOTHOUSE_*` variables. Pure.

Owns what may stand there and how errors name the place. Which file there is, and reading it, is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pilothouse.errors import OptionsError
from pilothouse.options.options import Options
from pilothouse.options.table import TABLE, Option

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings

PREFIX = "PILOTHOUSE_"


def from_table(table: Mapping[str, Any], directory: str, place: Callable[[str], str]) -> Options:
    """Options from the parsed table of a configuration file. (E49, L62)

    Args:
        table: names and values as they stand in the file.
        directory: what relative paths are relative to.
        place: where an option stands, for errors and `explain`; such as "pilothouse.toml:3".

    Raises:
        OptionsError: an unknown name, a wrong value, or an option that may not stand in a file; names the place.
    """
    layers: list[Options] = []
    for name, value in table.items():
        where = place(name)
        _refuse_in_file(name, where)
        given = _one(name, value, where).as_dict()[name]
        layers.append(_one(name, TABLE[name].kind.anchor(given, directory), where))
    return Options.stack(*layers, whole=False)


def needing_trust(options: Options) -> list[str]:
    """The options that do not hold in a file that nobody named or trusted."""
    return [name for name in options if TABLE[name].untrusted is None]


def untrusted_over(options: Options, variables: Options) -> Options:
    """The layer of a file that nobody trusts, without what would loosen what the variables say."""
    looser = [name for name in variables if name in options.as_dict() and not _may_stand(name, options, variables)]
    return options.left_out(looser, "does not win over the variable") if looser else options


def _may_stand(name: str, options: Options, variables: Options) -> bool:
    may_replace = TABLE[name].untrusted
    return may_replace is not None and may_replace(getattr(options, name), getattr(variables, name))


def from_environ(environ: Mapping[str, str]) -> Options:
    """Options from variables such as `PILOTHOUSE_MAX_TURNS=5`; lists as `A,B`, mappings as JSON. (E49)

    Empty variables, and those that are no option (`PILOTHOUSE_CACHE`), are passed over.

    Raises:
        OptionsError: a value that cannot be read; names the variable.
    """
    layers: list[Options] = []
    for variable in environ:
        if not variable.startswith(PREFIX):
            continue
        option = _VARIABLES.get(variable)
        text = environ[variable]
        if option is not None and text:
            layers.append(_one(option.name, _parsed(option, variable, text), variable))
    return Options.stack(*layers, whole=False)


def variable_of(name: str) -> str | None:
    """The variable that sets option `name`; None for options that cannot be written as text."""
    return PREFIX + name.upper() if TABLE[name].kind.parse is not None else None


_VARIABLES = {variable: option for name, option in TABLE.items() if (variable := variable_of(name))}


def _refuse_in_file(name: str, where: str) -> None:
    option = TABLE.get(name)
    if option is not None and not option.in_files:
        why = "keys belong into the environment" if option.secret else "it takes a Python object"
        raise OptionsError(f"{where}: option {name!r} may not stand in a configuration file: {why}", option=name)


def _one(name: str, value: Any, where: str) -> Options:
    try:
        return Options.layer(**cast("Settings", {name: value})).labelled(where)
    except OptionsError as error:
        raise OptionsError(f"{where}: {error}", option=error.option) from None


def _parsed(option: Option, variable: str, text: str) -> Any:
    assert option.kind.parse is not None
    try:
        return option.kind.parse(text)
    except ValueError as error:
        shown = "" if option.secret else f": {error}"
        raise OptionsError(f"{variable}: cannot be read as option {option.name!r}{shown}", option=option.name) from None
