"""What has come of runs, as lines of JSON or as CSV. Owns the columns and the two forms; knows no journal."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from pilothouse.errors import UsageError
from pilothouse.fleet.run import Run
from pilothouse.messages.jsonline import dump_line

COLUMNS = (
    "key", "state", "text", "structured", "error_type", "error", "attempts", "session_id", "cost_usd", "input_tokens",
    "output_tokens", "turns", "created", "started", "ended", "artifacts",
)  # fmt: skip
"""The columns of a row, in the order of the CSV form. Times are Unix seconds."""


def run_row(run: Run) -> dict[str, Any]:
    """A run as a flat mapping of plain values, with the names of `COLUMNS`."""
    result, error = run.result, run.error if not run.is_success else None
    own = {
        "text": run.text if error is None else "",
        "structured": None if result is None else result.structured,
        "error_type": None if error is None else type(error).__name__,
        "error": None if error is None else str(error),
        "turns": 0 if result is None else result.turns,
    }
    return {name: own[name] if name in own else getattr(run, name) for name in COLUMNS}


class RunWriter:
    """Writes runs to a file as they come; use it with `with`.

    Args:
        path: the file; its suffix says the form: ".csv", or anything else for lines of JSON.
        append: whether to go on in a file that is there; else it is written anew.

    Raises:
        UsageError: its directory is not there.
        OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise UsageError(f"there is no directory {self._path.parent}")
        self._is_csv = self._path.suffix.lower() == ".csv"
        # newline="": what a cell has stays as it is.
        mode = "a" if append else "w"
        self._file: TextIO = self._path.open(mode, encoding="utf-8", errors="backslashreplace", newline="")
        if self._is_csv and not self._file.tell():
            self._write_cells(COLUMNS)

    def write(self, run: Run) -> None:
        """Write one run; it is in the file when this returns."""
        row = run_row(run)
        if self._is_csv:
            self._write_cells([_cell(row[name]) for name in COLUMNS])
        else:
            self._file.write(dump_line(row).decode() + "\n")
        self._file.flush()

    def _write_cells(self, cells: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow(cells)
        self._file.write(line.getvalue())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dump_line(value).decode()
