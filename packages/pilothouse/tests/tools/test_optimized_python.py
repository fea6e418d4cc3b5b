"""`python -O` and `python -OO`: everything imports, tools and queries work, and what is missing is said once."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import pilothouse
from pilothouse.tools.input_schema import Parameter
from pilothouse_testing import FakeCLI

SOURCES = Path(pilothouse.__file__).parent

PROGRAM = '''
import asyncio, logging, os, pickle
import pilothouse as ph
from pilothouse.tools import prompt, resource
logging.basicConfig(format="%(message)s")

@ph.tool
def price(item: str, count: int = 1) -> str:
    """The price of an item."""
    return item

@ph.tool
def name(item: str) -> str:
    """The name of an item."""
    return item

@ph.tool(description="Say it.")
def say(text: str) -> str:
    return text

@resource("text://{name}")
def text(name: str) -> str:
    """A text."""
    return name

async def main() -> None:
    result = await ph.query("go", cli=os.environ["FAKE"], custom_tools=[price, name, say], can_use_tool=lambda r: True)
    print(result.text, price.input_schema["required"], say.description)

asyncio.run(main())
'''


def run(level: str, program: str, fake: FakeCLI) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FAKE": str(fake.path), "PYTHONOPTIMIZE": level}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("level", "warnings"), [("0", 0), ("1", 0), ("2", 1)])
def test_a_program_works_and_warns_once_without_docstrings(level: str, warnings: int) -> None:
    with FakeCLI() as fake:
        fake.text("Hello").forever()
        ran = run(level, PROGRAM, fake)
    assert (ran.returncode, ran.stdout) == (0, "Hello ['item'] Say it.\n"), ran.stderr
    lines = ran.stderr.splitlines()
    assert len(lines) == warnings
    assert all("-OO" in line and "@tool(description=…)" in line for line in lines)


IMPORTS = """
import importlib, pkgutil, sys
import pilothouse
failed = []
for module in pkgutil.walk_packages(pilothouse.__path__, "pilothouse."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError:  # an optional package
        continue
    except Exception as error:
        failed.append((module.name, error))
print(failed)
"""


def test_every_module_imports_without_docstrings() -> None:
    with FakeCLI() as fake:
        ran = run("2", IMPORTS, fake)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr


def test_a_missing_default_is_not_that_of_signatures() -> None:
    """Python 3.11.2 reads it in the signature of a dataclass without a docstring."""
    default = Parameter("x").default
    assert default is not inspect.Parameter.empty
    assert pickle.loads(pickle.dumps(default)) is default


def test_assertions_only_narrow_types() -> None:
    """Python -O removes them, so none may check a value that comes from outside, or do anything."""
    for path in SOURCES.rglob("*.py"):
        if path.is_relative_to(SOURCES / "testing") or path.parent.name == "testing":
            continue  # suites of tests
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assert):
                assert _is_narrowing(node.test), f"{path}:{node.lineno}: raise an error instead"


def _is_narrowing(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not) and _is_narrowing(test.operand)
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is | ast.IsNot):
        return False
    return not any(isinstance(each, ast.Call | ast.NamedExpr) for each in ast.walk(test))
