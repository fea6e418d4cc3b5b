"""With every product deleted, the tests of the core pass: all they need is the core and `pilothouse-testing`.

One case of each: what a test imports is the same in all.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from places import ROOT
from tree_copies import copy_tree

KEPT = ("pilothouse", "pilothouse-testing")
FOLDERS = sorted(path.name for path in (ROOT / "packages/pilothouse/tests").iterdir() if any(path.glob("test_*.py")))


@pytest.fixture(scope="session")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without products, and an environment that knows none."""
    root = tmp_path_factory.mktemp("core_alone")
    copy_tree(root, ("conftest.py", "pyproject.toml", "tests", *(f"packages/{each}" for each in KEPT)), KEPT)
    return root


@pytest.mark.matrix
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_core_needs_no_product(core_alone: Path, folder: str) -> None:
    program = [core_alone / ".venv" / "bin" / "python", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    chosen = ["-k", "not trio", "-m", "not matrix and not slow and not soak and not real_cli"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [*program, "-p", "tests.one_case", *chosen, f"packages/pilothouse/tests/{folder}"],
        cwd=core_alone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
