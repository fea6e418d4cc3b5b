"""Without an extra, the import of what needs it names the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("pilothouse_models.langchain", "langchain_core", "langchain"),
        ("pilothouse_models.pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("pilothouse_models.endpoints", "starlette", "server"),
        ("pilothouse_models.endpoints", "pilothouse_access", "server"),
    ],
)
def test_without_the_extra_the_error_says_what_to_install(module: str, package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try:\n    import {module}\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert f"pip install 'pilothouse[{extra}]'" in ran.stdout
