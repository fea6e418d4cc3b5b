"""No `__del__` fails when the object was never made: a wrong argument gives its own error and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import pilothouse as ph
from pilothouse_pool import Pool


def _classes() -> list[type[Any]]:
    found: set[type[Any]] = set()
    for module in pkgutil.walk_packages(ph.__path__, "pilothouse."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # an extra that is not installed
            continue
        found |= {cls for _, cls in inspect.getmembers(loaded, inspect.isclass) if "__del__" in vars(cls)}
    return sorted((cls for cls in found if cls.__module__.startswith("pilothouse.")), key=lambda cls: cls.__qualname__)


def test_no_finalizer_needs_what_init_sets() -> None:
    classes = _classes()
    assert len(classes) >= 8
    for cls in classes:
        cls.__del__(cls.__new__(cls))  # pyright: ignore[reportCallIssue]


@pytest.mark.filterwarnings("error")
def test_a_pool_with_a_wrong_argument_raises_one_error() -> None:
    with pytest.raises(TypeError, match="size"):
        Pool(size=2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ph.OptionsError, match="min_idle"):
        Pool(min_idle=-1)
