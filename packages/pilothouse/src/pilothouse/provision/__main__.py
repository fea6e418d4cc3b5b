"""`python -m pilothouse.provision cli model`: fetch files into the cache, a line for every step."""

from __future__ import annotations

import argparse
import sys

from pilothouse.errors import ProvisionError
from pilothouse.provision.installer import Stage
from pilothouse.provision.pinned_files import ensure_cli, ensure_model

_PARTS = {"cli": ensure_cli, "model": ensure_model}


class _ProgressPrinter:
    """Prints a line when a stage begins."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._stage: Stage | None = None

    def __call__(self, stage: Stage, done: int, total: int | None) -> None:
        if stage != self._stage:
            self._stage = stage
            _print_line(f"{self._part}: {stage}" + (f" ({total / 1e6:.0f} MB)" if total else ""))


def main(argv: list[str] | None = None) -> int:
    """Fetch the named parts.

    Returns:
        0, or 1 after one line on standard error that says what failed.
    """
    parser = argparse.ArgumentParser(prog="python -m pilothouse.provision", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(_PARTS), metavar="part", help="cli, model")
    for part in parser.parse_args(argv).parts:
        try:
            path = _PARTS[part](_ProgressPrinter(part))
        except ProvisionError as error:
            print(f"{part}: {error}", file=sys.stderr)  # noqa: T201 - this is a command
            return 1
        _print_line(f"{part}: {path}")
    return 0


def _print_line(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a command


if __name__ == "__main__":
    sys.exit(main())
