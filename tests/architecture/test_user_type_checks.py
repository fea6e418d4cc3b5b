"""What users write is checked by a type checker before it runs: pyright, strict, over a program of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pilothouse

RIGHT = """
import pilothouse as ph
from pilothouse import sync

async def main() -> None:
    result = await ph.query("go", model="opus", max_turns=3, allowed_tools=["Read"])
    text: str = result.text
    cost: float | None = result.cost_usd
    async with ph.Agent(permission_mode="plan", timeout=5).session() as session:
        text += (await session.query("more")).text
    print(text, cost, sync.query("go", effort="low").result().turns)
"""
WRONG = [
    'ph.query("go", modle="opus")',
    'ph.query("go", max_turns="3")',
    'ph.Agent(permission_mode="yolo")',
    "ph.Options(allowed_tools=[1])",
    'ph.query("go", {"model": "opus"})',
    'sync.query("go", timeout="soon")',
]


def check_types(directory: Path, *programs: str) -> list[dict[str, Any]]:
    """The errors of pyright; `program` is the number of the program that an error is in."""
    for number, text in enumerate(programs):
        (directory / f"program_{number}.py").write_text(text)
    (directory / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [each | {"program": int(Path(each["file"]).stem.rpartition("_")[2])} for each in found]


@pytest.mark.requirement("E44", "E47")
def test_a_type_checker_takes_what_is_right_and_names_what_is_wrong(tmp_path: Path) -> None:
    wrong = [f"import pilothouse as ph\nfrom pilothouse import sync\nprint(ph, sync)\n{code}\n" for code in WRONG]
    programs = {each["program"] for each in check_types(tmp_path, RIGHT, *wrong) if each["severity"] == "error"}
    assert programs == set(range(1, len(WRONG) + 1))


@pytest.mark.requirement("E47")
def test_the_package_is_marked_as_typed() -> None:
    assert (Path(pilothouse.__file__).parent / "py.typed").is_file()
