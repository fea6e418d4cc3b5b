"""Copies of this tree with a virtual environment of their own, so that tests run on other sources."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.places import ROOT


def copy_tree(directory: Path, names: Iterable[str], packages: Collection[str]) -> Path:
    """Copy files and folders of this tree, and make an environment that leads to the copied sources.

    Args:
        directory: the root of the copy; it need not exist.
        names: paths below the root.
        packages: our own packages that the environment knows, such as "pilothouse-fleet"; others are not installed in
            it.

    Returns:
        The Python of the environment.
    """
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():  # without bytecode, which pytest's own names the files of this tree in
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, target)
    venv.create(directory / ".venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(directory / ".venv")}))
    metadata = tuple(f"{each.replace('-', '_')}-" for each in packages)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not (site / path.name).exists() and ("pilothouse" not in path.name or path.name.startswith(metadata)):
            (site / path.name).symlink_to(path)
    (site / "copy.pth").write_text("".join(f"{directory / 'packages' / each / 'src'}\n" for each in packages))
    return directory / ".venv" / "bin" / "python"
