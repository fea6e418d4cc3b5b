"""The output of a command about the configuration file, and the question whether the user trusts it.

Owns when to ask: a person at a terminal, once per content of a file. Runs before the event loop, so that Ctrl-C works
as usual. `client.config_file` knows which settings of an untrusted file apply.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pilothouse import trust_store
from pilothouse.cli.chat_input import Terminal
from pilothouse.cli.screen import Screen, escape_invisible
from pilothouse.client.config_file import (
    ConfigFile,
    clear_cache,
    describe_distrust,
    load_config_layer,
    mark_reported,
    printable,
)
from pilothouse.errors import UsageError
from pilothouse.options import TABLE, Options
from pilothouse.options.secrets import mask

YES_WORDS = frozenset({"y", "yes"})


def announce_config_file(screen: Screen, *, may_ask: bool) -> None:
    """Print which configuration file is in effect and what it sets; ask about an untrusted one if `may_ask`."""
    try:
        file = load_config_layer(warns=False)
        if file is not None and file.ignored_options and may_ask and _is_interactive() and _ask_for_trust(file, screen):
            trust_store.remember_trust(file.path, file.digest)
            clear_cache()
            file = load_config_layer(warns=False)
    except UsageError:
        return  # the command itself meets the error and reports it in its own form
    except OSError as error:
        screen.note(f"the answer could not be kept in {trust_store.store_path()}: {error.strerror}", "warning")
        return
    if file is None:
        return
    if file.ignored_options:
        mark_reported(file)
        screen.note(describe_distrust(file), "warning")
    else:
        screen.note(f"{printable(file.path)} sets {', '.join(file.options) or 'nothing'}", "quiet")


def _is_interactive() -> bool:
    """Whether a person sees questions and can answer."""
    if os.environ.get("CI"):
        return False
    # A closed stream is None.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))  # pyright: ignore[reportUnnecessaryComparison]


def _ask_for_trust(file: ConfigFile, screen: Screen) -> bool:
    screen.note(f"{printable(file.path)} wants to set what runs, where requests go, or what is permitted:", "warning")
    for name in file.ignored_options:
        screen.note(f"  {name} = {escape_invisible(_format_value(file.wanted, name))}")
    screen.note("If you trust it, the author of the file decides this. Read it first. A changed file asks again.")
    Terminal(sys.stdin.fileno()).discard_typed()
    sys.stderr.write("Trust this file? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in YES_WORDS


def _format_value(options: Options, name: str) -> str:
    value: Any = options.as_dict()[name]
    if name == "env" and isinstance(value, Mapping):  # the values may contain a key; the names are enough
        return ", ".join(str(variable) for variable in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, str) and value.lstrip().startswith("{") and not TABLE[name].secret:
        return mask(value)  # `explain` leaves JSON text out, and a command may stand in it
    return options.explain()[name].value
