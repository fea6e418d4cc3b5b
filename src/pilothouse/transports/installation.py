"""Obtains the executable for a child: finds it, or installs it before the first query. Runs off the event loop.

Owns what a query sees of an installation: a log line, one result for all queries that wait for it, and a prompt end
after a cancellation. `discovery` knows where executables are, `provision` how to fetch them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pilothouse.errors import CLINotFoundError
from pilothouse.transports.concurrency import run_blocking, run_cancellable
from pilothouse.transports.discovery import INSTALL_INSTRUCTIONS, INSTALL_VARIABLE, find_cli, may_install

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pilothouse.errors import ProvisionError

_log = logging.getLogger("pilothouse.transports")
_failures: dict[Path, tuple[float, ProvisionError]] = {}
"""Target path → when its last failed installation ended, and the error."""


async def find_or_install_cli(cli: str, env: Mapping[str, str]) -> str:
    """Return the path of the executable to run; installs the managed copy if needed and allowed.

    A cancellation ends the installation within a moment and removes what it has made.

    Args:
        cli: "auto", "bundled", "global" or a path.
        env: the environment of the child.

    Raises:
        CLINotFoundError: there is none; says what was tried. If an installation failed, the message says why, and
            `__cause__` is the `ProvisionError`.
    """
    try:
        return await run_blocking(find_cli, cli, env)
    except CLINotFoundError as error:
        if not may_install(cli, env):
            raise
        missing = error
    return await run_cancellable(_Installation(cli, missing).run)


class _SharedFailureError(Exception):
    """Another query of this process has just failed to install the same copy."""

    def __init__(self, error: ProvisionError) -> None:
        super().__init__(str(error))
        self.error = error


class _Installation:
    """One query's request for the managed copy. Made on the event loop, run in a thread.

    Args:
        cli: the requested `cli` value.
        missing: the error of the search before.
    """

    def __init__(self, cli: str, missing: CLINotFoundError) -> None:
        self._cli = cli
        self._missing = missing
        self._requested_at = time.monotonic()
        self._stages: set[str] = set()

    def run(self, check: Callable[[], None]) -> str:
        """Install the managed copy and return its path; `check` raises once the query was cancelled."""
        from pilothouse.errors import ProvisionError
        from pilothouse.provision.cli_installation import install_cli
        from pilothouse.provision.pinned_files import managed_cli_path

        target = managed_cli_path()

        def watch(stage: str, done: int, total: int | None) -> None:
            check()
            self._raise_shared_failure(target)
            if stage not in self._stages:
                self._stages.add(stage)
                self._log_stage(target, stage, total)

        try:
            path = install_cli(progress=watch)
        except _SharedFailureError as joined:
            raise self._make_error(joined.error) from joined.error
        except ProvisionError as error:
            _failures[target] = (time.monotonic(), error)
            raise self._make_error(error) from error
        if "extract" in self._stages:
            _log.info("Claude Code is installed: %s, after %.0f s", path, time.monotonic() - self._requested_at)
        return str(path)

    def _raise_shared_failure(self, target: Path) -> None:
        """Reuse the failure of another query of this process that has just happened, instead of trying again."""
        failed_at, error = _failures.get(target, (0.0, None))
        if error is not None and failed_at > self._requested_at:
            raise _SharedFailureError(error)

    def _log_stage(self, target: Path, stage: str, total: int | None) -> None:
        from pilothouse.provision.pinned_files import PINNED_VERSION

        # A warning, because warnings show even without logging set up: a silent download looks like a hang.
        if stage == "download":
            size = f"{total / 1e6:.0f} MB" if total else "about 175 MB"
            _log.warning(
                "Claude Code %s is fetched now, once (%s, into %s). `pilothouse install-cli` does it beforehand, "
                "%s=0 forbids it.", PINNED_VERSION, size, target.parent, INSTALL_VARIABLE,
            )  # fmt: skip
        elif stage == "wait":
            _log.info("waiting for another installation of Claude Code %s into %s", PINNED_VERSION, target.parent)

    def _make_error(self, error: ProvisionError) -> CLINotFoundError:
        _, _, tried = str(self._missing).partition(" Tried:")
        text = f"Claude Code was not found (cli={self._cli!r}), and could not be installed: {error} Tried:"
        return CLINotFoundError(
            text + (tried or f"\n{INSTALL_INSTRUCTIONS}"), exit_code=error.exit_code, stderr=error.stderr
        )
