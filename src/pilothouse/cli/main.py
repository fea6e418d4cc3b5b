"""The entry point: arguments, the one event loop, signals, and the exit code in every case.

Imports little before it runs, so that Ctrl-C prints no traceback from the first moment on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from pilothouse.errors import UsageError

if TYPE_CHECKING:
    from pilothouse.cli.arguments import AskRequest
    from pilothouse.cli.screen import Screen

SIGNAL_BASE = 128
OUTPUT_CLOSED = 141


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments without the program; None: those of this process.

    Returns:
        The exit code: 0 answered, 1 failed, 2 wrong usage or no CLI, 124 timeout, 130 Ctrl-C, 141 output closed.
    """
    ended_by = _SignalExit()
    try:
        with ended_by.handle_signals():
            code = _run(argv)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return _interrupted(ended_by.signum)
    except BrokenPipeError:
        _discard_output()
        return OUTPUT_CLOSED


def _run(argv: list[str] | None) -> int:
    from pilothouse.cli.arguments import AskRequest, parse
    from pilothouse.cli.terminal import make_screen, open_streams

    out, notes = open_streams()
    request = parse(argv)
    if isinstance(request, AskRequest):
        return _ask(request, make_screen(out, notes))
    kind = type(request).__name__
    if kind in _CONFIGURED_REQUESTS and getattr(request, "action", "") not in ("results", "status"):
        _announce_config_file(make_screen(out, notes), may_ask=kind == "ChatRequest")
    module, name = _RUNNERS[kind]
    run = getattr(import_module(f"pilothouse.cli.{module}"), name)
    return _run_with_screen(make_screen(out, notes if kind in _NOTES_ON_STDERR else out), partial(run, request))


def _ask(request: AskRequest, screen: Screen) -> int:
    from pilothouse.cli.ask import ask, read_prompt

    _announce_config_file(screen, may_ask=request.form == "text")
    try:
        prompt = read_prompt(request.prompt, screen.note)
    except (UsageError, OSError) as error:
        return _print_error(error, screen)
    return _run_with_screen(screen, partial(ask, request, prompt))


def _announce_config_file(screen: Screen, *, may_ask: bool) -> None:
    from pilothouse.cli.trust import announce_config_file

    announce_config_file(screen, may_ask=may_ask)


def _run_with_screen(screen: Screen, run: Callable[[Screen], Coroutine[Any, Any, int]]) -> int:
    import anyio

    try:
        return anyio.run(run, screen)
    except UsageError as error:
        return _print_error(error, screen)
    finally:
        screen.idle()


def _print_error(error: Exception, screen: Screen) -> int:
    from pilothouse.cli.failures import describe_failure

    failure = describe_failure(error)
    screen.note(f"pilothouse: {failure.line}", "error")
    return failure.code


# By the class of the request, so that a command imports nothing of the others.
_RUNNERS = {
    "BatchRequest": ("batch", "batch"),
    "ChatRequest": ("chat", "chat"),
    "DemoRequest": ("demo", "demo"),
    "DoctorRequest": ("doctor", "doctor"),
    "InstallRequest": ("install", "install"),
    "OptionsRequest": ("options", "show_options"),
    "ReplayRequest": ("replay", "replay"),
    "ServeRequest": ("serve", "serve"),
    "SessionsRequest": ("sessions", "sessions"),
    "WorkerRequest": ("batch", "worker"),
}
# Commands whose standard output is for answers alone.
_NOTES_ON_STDERR = frozenset(
    {"BatchRequest", "ChatRequest", "ReplayRequest", "ServeRequest", "SessionsRequest", "WorkerRequest"}
)

# Commands whose queries take settings from the configuration file, in addition to `ask`.
_CONFIGURED_REQUESTS = frozenset({"BatchRequest", "ChatRequest", "WorkerRequest"})


class _SignalExit:
    """The signal that ended the run: SIGTERM and SIGHUP are handled like Ctrl-C, so that the process ends cleanly."""

    def __init__(self) -> None:
        self.signum = signal.SIGINT

    @contextmanager
    def handle_signals(self) -> Generator[None]:
        before: dict[signal.Signals, Any] = {}
        for name in ("SIGTERM", "SIGHUP"):
            signum: signal.Signals | None = getattr(signal, name, None)
            # An ignored signal, as under nohup, stays ignored.
            if signum is not None and signal.getsignal(signum) is signal.SIG_DFL:
                before[signum] = signal.signal(signum, self._raise_interrupt)
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _raise_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signal.Signals(signum)
        handler = signal.getsignal(signal.SIGINT)  # that of the event loop while one runs
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)


def _interrupted(signum: signal.Signals) -> int:
    try:
        print("\npilothouse: interrupted", file=sys.stderr, flush=True)
    except OSError:
        _discard_output()
    # CPython 3.11 ends itself by SIGINT, whatever is returned, if the interrupt passed through code compiled from text,
    # as when importing dataclasses. Running such code again clears that state.
    eval("None")  # noqa: S307 - a constant
    return SIGNAL_BASE + signum


def _discard_output() -> None:
    """Keep the interpreter from reporting errors at exit about closed output streams."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
