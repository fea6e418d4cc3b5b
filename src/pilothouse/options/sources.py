"""Options from a configuration file and from `PILOTHOUSE_*` variables.

Pure. Owns what may be set there and the location in an error; the client finds and reads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pilothouse.errors import OptionsError
from pilothouse.options.options import Options
from pilothouse.options.table import TABLE, Option

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings

VARIABLE_PREFIX = "PILOTHOUSE_"


def read_config_table(table: Mapping[str, Any], directory: str, locate: Callable[[str], str]) -> Options:
    """Make options from the parsed table of a configuration file.

    Args:
        table: names and values, as in the file.
        directory: base of relative paths.
        locate: returns the location of an option, for errors and `explain`; such as "pilothouse.toml:3".

    Raises:
        OptionsError: an unknown name, a wrong value, or an option that a file may not set; names the location.
    """
    layers: list[Options] = []
    for name, value in table.items():
        where = locate(name)
        _refuse_in_file(name, where)
        given = _make_layer(name, value, where).as_dict()[name]
        layers.append(_make_layer(name, TABLE[name].value_type.resolve_paths(given, directory), where))
    return Options.stack(*layers, is_complete=False)


def find_options_needing_trust(options: Options) -> list[str]:
    """Return the options that an untrusted file cannot set."""
    return [name for name in options if TABLE[name].untrusted is None]


def restrict_untrusted(options: Options, variables: Options) -> Options:
    """Return the layer of an untrusted file, without options that would loosen those of the variables."""
    looser = [name for name in variables if name in options.as_dict() and not _may_override(name, options, variables)]
    return options.without(looser, "does not override the variable") if looser else options


def _may_override(name: str, options: Options, variables: Options) -> bool:
    may_replace = TABLE[name].untrusted
    return may_replace is not None and may_replace(getattr(options, name), getattr(variables, name))


def read_environ(environ: Mapping[str, str]) -> Options:
    """Make options from variables such as `PILOTHOUSE_MAX_TURNS=5`; lists as `A,B`, mappings as JSON.

    Empty variables, and those that are not options (`PILOTHOUSE_CACHE`), are ignored.

    Raises:
        OptionsError: a value is not readable; names the variable.
    """
    layers: list[Options] = []
    for variable in environ:
        if not variable.startswith(VARIABLE_PREFIX):
            continue
        option = _VARIABLES.get(variable)
        text = environ[variable]
        if option is not None and text:
            layers.append(_make_layer(option.name, _parse_variable(option, variable, text), variable))
    return Options.stack(*layers, is_complete=False)


def get_variable_name(name: str) -> str | None:
    """Return the variable that sets option `name`; None for options without a text form."""
    return VARIABLE_PREFIX + name.upper() if TABLE[name].value_type.parse is not None else None


_VARIABLES = {variable: option for name, option in TABLE.items() if (variable := get_variable_name(name))}


def _refuse_in_file(name: str, where: str) -> None:
    option = TABLE.get(name)
    if option is not None and not option.in_files:
        why = "keys belong in the environment" if option.secret else "it takes a Python object"
        raise OptionsError(f"{where}: option {name!r} is not allowed in a configuration file: {why}", option=name)


def _make_layer(name: str, value: Any, where: str) -> Options:
    try:
        return Options.layer(**cast("Settings", {name: value})).with_origin(where)
    except OptionsError as error:
        raise OptionsError(f"{where}: {error}", option=error.option) from None


def _parse_variable(option: Option, variable: str, text: str) -> Any:
    assert option.value_type.parse is not None
    try:
        return option.value_type.parse(text)
    except ValueError as error:
        shown = "" if option.secret else f": {error}"
        raise OptionsError(f"{variable}: cannot be read as option {option.name!r}{shown}", option=option.name) from None
