"""The entry point: arguments, the one event loop, signals, and the exit code in every case.

Imports nothing of the core before it runs: that takes most of the start, and Ctrl-C meanwhile prints no traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from pilothouse_cli.terminal import SIGNAL_BASE, open_streams, replace_handlers

if TYPE_CHECKING:
    from pilothouse_cli.arguments import Command
    from pilothouse_cli.screen import Screen

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
        # An ignored signal, as under nohup, stays ignored.
        with replace_handlers(("SIGTERM", "SIGHUP"), ended_by.interrupt, lambda old: old is signal.SIG_DFL):
            code = _run(argv)
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                return _fail_unwritten(error)
            return code
    except KeyboardInterrupt:
        return _interrupted(ended_by.signum)
    except BrokenPipeError:
        _discard_output()
        return OUTPUT_CLOSED


def _run(argv: list[str] | None) -> int:
    from pilothouse_cli.arguments import find_command, parse
    from pilothouse_cli.screen import Screen

    out, notes = open_streams()
    request = parse(argv)
    command = find_command(request)
    if command.run == "compat.run_compat":  # another program takes over: no screen, no event loop
        return import_module("pilothouse_cli.compat").run_compat(request)
    return run_command(command, request, Screen(out, notes if command.has_answer else out))


def run_command(command: Command, request: Any, screen: Screen) -> int:
    """Run a command in an event loop, and report its failure; returns the exit code."""
    import anyio

    from pilothouse.errors import PilothouseError
    from pilothouse_cli.config import read_config
    from pilothouse_cli.flags import ConfiguredRequest

    module, _, name = command.run.partition(".")
    commands = import_module(f"pilothouse_cli.{module}")
    try:
        if issubclass(command.request, ConfiguredRequest):
            read_config(request.config)
        if name == "ask":  # before the event loop, so that Ctrl-C ends the wait for standard input
            request = replace(request, prompt=commands.read_prompt(request.prompt, screen.note))
        return anyio.run(getattr(commands, name), request, screen)
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        from pilothouse_cli.failures import report_failure

        try:
            return report_failure(screen, error)
        except OSError as failure:  # a full disk, say, takes no report either
            return _fail_unwritten(failure)
    finally:
        screen.idle()


class _SignalExit:
    """The signal that ended the run: SIGTERM and SIGHUP are handled like Ctrl-C, so that the process ends cleanly."""

    def __init__(self) -> None:
        self.signum = signal.SIGINT

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
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


def _fail_unwritten(error: OSError) -> int:
    from pilothouse_cli.failures import FAILED

    print(f"pilothouse: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)
    _discard_output()
    return FAILED


def _discard_output() -> None:
    """Keep the interpreter from reporting errors at exit about closed output streams."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
