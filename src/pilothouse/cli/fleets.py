"""The fleet of a command: made of its flags, its journal wherever that is, and what is said of it.

Owns how a journal is named on a command line, and that no password of its address is shown or handed on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from pilothouse.cli.fleet_flags import FleetRequest
from pilothouse.cli.screen import Screen
from pilothouse.cli.workspace_flags import workspace_settings
from pilothouse.client import default_agent
from pilothouse.errors import UsageError
from pilothouse.fleet import Fleet, Rate
from pilothouse.options import Options, Settings
from pilothouse.options.secrets import Redactor, secret_values
from pilothouse.stores.encoding import secrets_in, shown_address, without

R = TypeVar("R", bound=FleetRequest)

JOURNAL_VARIABLE = "PILOTHOUSE_JOURNAL"


def with_journal(request: R) -> R:
    """The request with the journal of the environment, unless the flag says which.

    The variable is taken out of the environment: Claude Code inherits that, and the address may hold a password.
    """
    there = os.environ.pop(JOURNAL_VARIABLE, None)
    return replace(request, journal=request.journal or there or None)


def needed_journal(request: FleetRequest, what: str) -> str:
    """The journal of a command that has no use without one.

    Raises:
        UsageError: there is none.
    """
    if request.journal is None:
        raise UsageError(f"{what} needs --journal, or the variable {JOURNAL_VARIABLE}")
    return request.journal


def is_address(journal: str) -> bool:
    """Whether a journal is on a server, and no file."""
    return "://" in journal


def shown(journal: str) -> str:
    """A journal as it may be shown: an address without its password and its parameters."""
    return shown_address(journal) if is_address(journal) else journal


def redactor(request: FleetRequest) -> Callable[[str], str]:
    """What takes keys and passwords out of a text."""
    keys = Redactor(secret_values(os.environ))
    secrets = secrets_in(request.journal) if request.journal is not None and is_address(request.journal) else ()
    return lambda text: without(secrets, keys.redact(text))


def fleet_of(request: FleetRequest, **more: Any) -> Fleet:
    """The fleet that was asked for; `more` are arguments of `Fleet` that take the place of what the flags say.

    Raises:
        UsageError: something that cannot be.
    """
    settings: dict[str, Any] = {
        "concurrency": request.concurrency,
        "journal": request.journal,
        "budget_usd": request.budget_usd,
        "run_budget_usd": request.run_budget_usd,
        "rate": Rate(requests_per_minute=request.requests_per_minute, tokens_per_minute=request.tokens_per_minute),
        "overall_concurrency": request.overall_concurrency,
        "overall_rate": Rate(
            requests_per_minute=request.overall_requests_per_minute,
            tokens_per_minute=request.overall_tokens_per_minute,
        ),
        "stop_after": request.stop_after or None,
        "retry": request.retry,
        "on_interrupted": request.on_interrupted,
        **workspace_settings(request.workspace),
    }
    return Fleet(default_agent().with_options(**request.settings), **settings | more)


async def with_local_model(request: R, stack: AsyncExitStack, screen: Screen) -> R:
    """The request as it is; with --local, with the settings of the embedded model, which the stack ends.

    Raises:
        UsageError: the runs would be done elsewhere, another model is named, or an extra is missing.
    """
    if not request.local:
        return request
    if request.settings.get("model") is not None:
        raise UsageError("--local brings its own model: leave --model away")
    from pilothouse.cli.local_model import local_options

    given = Options(**cast("Settings", request.settings))
    options = await local_options(default_agent().options.merge(given), stack, screen)
    return replace(request, settings=options.merge(given).as_dict())


@contextmanager
def warnings_to(screen: Screen, redact: Callable[[str], str]) -> Generator[None]:
    """A block in which a person sees what the fleet warns of, such as a journal that cannot be reached."""
    log = logging.getLogger("pilothouse.fleet")
    noted = _Noted(screen, redact)
    log.addHandler(noted)
    try:
        yield
    finally:
        log.removeHandler(noted)


class _Noted(logging.Handler):
    """Log records as notes on a screen, a line each."""

    def __init__(self, screen: Screen, redact: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(self._redact(record.getMessage()).split())
        self._screen.note(text, "error" if record.levelno >= logging.ERROR else "warning")
