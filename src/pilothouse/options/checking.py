"""Validation of one option, and of options together. Pure; raises `OptionsError` that names the option. (E24, E45)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilothouse.errors import OptionsError
from pilothouse.options.faults import Fault
from pilothouse.options.rules import CONFLICTS, NEEDS
from pilothouse.options.table import TABLE

# Most layers set one or two options, and none of these.
_CONFLICTING = frozenset(conflict.first for conflict in CONFLICTS)
_NEEDY = frozenset(need.name for need in NEEDS)


def checked(name: str, value: Any) -> Any:
    """The stored form of the value of an option; None stays None.

    Raises:
        OptionsError: there is no such option, or the value is not valid.
    """
    option = TABLE.get(name)
    if option is None:
        from pilothouse.options.names import unknown  # only on the way to an error

        raise unknown(name)
    if value is None:
        return None
    try:
        return option.kind.clean(value)
    except Fault as fault:
        told = fault.told(secret=option.secret)
    raise OptionsError(f"option {name!r}: {told}", option=name)


def check_combination(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check values that are valid one by one.

    Raises:
        OptionsError: some of them do not go together; says where they come from, if `origins` does.
    """
    check_conflicts(values, origins)
    if _NEEDY.isdisjoint(values):
        return
    for need in NEEDS:
        if values.get(need.name) and not any(values.get(other) for other in need.any_of):
            needed = " or ".join(repr(other) for other in need.any_of)
            raise OptionsError(f"option {need.name!r} needs {needed}: {need.advice}", option=need.name)


def check_conflicts(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """As `check_combination`, but passes over what is missing: a layer beneath may have it."""
    if _CONFLICTING.isdisjoint(values):
        return
    for conflict in CONFLICTS:
        if values.get(conflict.first) and values.get(conflict.second) and conflict.holds(values):
            names = (conflict.first, conflict.second)
            who = "".join(f"; {name!r} comes from {origins[name]}" for name in names if name in origins)
            raise OptionsError(
                f"options {conflict.first!r} and {conflict.second!r} exclude each other: {conflict.advice}{who}",
                option=conflict.first,
            )
