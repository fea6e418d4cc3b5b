"""Each distribution names what it imports: one version, exact pins between our own, a licence, a page, types."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from places import CORE, ROOT, SOURCES

import pilothouse
from pilothouse import hints

PACKAGES = [source.parents[1] for source in SOURCES]
NAMES = [path.name for path in PACKAGES]


def read_project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found, requirement
    return found[0].replace("-", "_")


def own_imports(package: Path) -> dict[str, str]:
    """The packages of this repository that the source imports, wherever the import stands, and one place of each."""
    found: dict[str, str] = {}
    for path in package.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom | ast.Import):
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in names:
                if (top := module.partition(".")[0]).startswith("pilothouse"):
                    found.setdefault(top, f"{path.relative_to(package)}:{node.lineno}")
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_a_package_requires_what_it_imports(package: Path) -> None:
    project = read_project(package)
    own = project["name"].replace("-", "_")
    required = {name_of(each) for each in project["dependencies"]}
    extra = {name_of(each) for extra in project.get("optional-dependencies", {}).values() for each in extra}
    used = own_imports(package)
    allowed = {own, *required} | (extra if own != "pilothouse" else set())
    assert {name: place for name, place in used.items() if name not in allowed} == {}
    assert {name for name in required if name.startswith("pilothouse")} <= set(used)


def test_the_core_requires_two_packages() -> None:
    project = read_project(CORE.parents[1])
    assert sorted(map(name_of, project["dependencies"])) == ["anyio", "msgspec"]
    assert set(NAMES) - {"pilothouse"} == {
        name_of(each).replace("_", "-") for each in project["optional-dependencies"]["all"]
    }


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_all_packages_have_one_version(package: Path) -> None:
    project = read_project(package)
    assert project["version"] == pilothouse.__version__
    everything = [
        *project["dependencies"],
        *(each for rows in project.get("optional-dependencies", {}).values() for each in rows),
    ]
    ours = [each for each in everything if each.startswith("pilothouse")]
    assert [each for each in ours if not each.endswith(f"=={pilothouse.__version__}")] == []


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_a_package_has_a_licence_a_page_and_types(package: Path) -> None:
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    page = (package / "README.md").read_text()
    assert page.startswith(f"# {package.name}\n")
    assert len(page.splitlines()) < 60
    assert (package / "src" / package.name.replace("-", "_") / "py.typed").exists()


def test_the_list_of_packages_is_whole() -> None:
    lines = (ROOT / "packages.txt").read_text().splitlines()
    assert sorted(line for line in lines if not line.startswith("#")) == sorted(f"-e packages/{name}" for name in NAMES)


def test_extras_that_hints_name_install_what_they_say() -> None:
    extras = read_project(CORE.parents[1])["optional-dependencies"]
    for home, extra in hints.EXTRAS.items():
        assert home.partition(".")[0] in {name_of(each) for each in extras[extra]}, (home, extra)
