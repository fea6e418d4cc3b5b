"""What is named after the options: keyword arguments, attributes and methods of the fluent form, made from the table.

Type checkers and editors read `settings.pyi` instead, which `python docs/reference.py` writes from the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from pilothouse.options.table import TABLE, Option
from pilothouse.options.value_types import copy_value
from pilothouse.tracebacks import hide_arguments


class Settings(TypedDict, total=False):
    """Keyword arguments of `Options`, `Agent`, `query` and `configure`; `pilothouse.options.TABLE` explains each."""


class OptionAttributes:
    """An attribute for every option: what was set, or the default."""


class OptionSetters:
    """A method for every option; it takes the value, or None for the default, and returns the object itself."""

    __slots__ = ()


def _make_property(option: Option) -> property:
    is_foreign = option.value_type.takes == "Any"  # a transport, for example, which is not copied

    def read(options: Any) -> Any:
        value = options._values.get(option.name)  # noqa: SLF001 - a method of `Options`
        if value is None:
            value = option.default
        return value if is_foreign else copy_value(value)

    return property(read)


def _make_setter(option: Option) -> Callable[[Any, Any], Any]:
    def set_option(self: Any, value: Any) -> Any:
        return self._set_option(option.name, value)  # of `OptionsBuilder`

    set_option.__name__ = option.name
    set_option.__qualname__ = f"OptionsBuilder.{option.name}"
    set_option.__doc__ = option.doc
    return set_option


for _name, _option in TABLE.items():
    setattr(OptionAttributes, _name, _make_property(_option))
    setattr(OptionSetters, _name, hide_arguments(_make_setter(_option)))
