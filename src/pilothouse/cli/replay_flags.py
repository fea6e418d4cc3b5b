"""The flags that have to do with recordings: those of `pilothouse replay`, and `--transport` of the others.

Reads text; opens no file and starts nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""The environment variable with the token of the host of `--transport ws://…`."""
Form = Literal["text", "json", "stream-json"]

REPLAY_HELP = "show a recorded run"
REPLAY_DESCRIPTION = (
    "Show a recorded run as the command would have shown it: answers on standard output, prompts, tools and the "
    "closing line on standard error. Nothing is started. Ends as the run did."
)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What `pilothouse replay` was asked for."""

    file: str
    form: Form = "text"
    speed: float | None = None
    thinking: bool = False
    verbose: bool = False


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("file", metavar="FILE", help="a cassette, made by --transport record:FILE or in a program")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--json", dest="form", action="store_const", const="json", default="text", help="one JSON object for each turn"
    )
    forms.add_argument(
        "--stream-json",
        dest="form",
        action="store_const",
        const="stream-json",
        help="every message as a line of JSON, as it came",
    )
    parser.add_argument(
        "--speed", type=_speed, metavar="N", help="1 as fast as it was, 2 twice as fast; without it, all at once"
    )
    parser.add_argument("--thinking", action="store_true", help="show what the model thought")
    parser.add_argument("--verbose", action="store_true", help="show what was written to standard error")


def replay_request(asked: argparse.Namespace) -> ReplayRequest:
    """The request that the flags stand for."""
    return ReplayRequest(asked.file, asked.form, asked.speed, asked.thinking, asked.verbose)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number greater than 0, got {text!a}")
    return speed


def read_transport(text: str) -> Callable[[], Any]:
    """What `--transport` stands for.

    Raises:
        argparse.ArgumentTypeError: it is nothing that is known.
    """
    if text == "native":
        from pilothouse.native import NativeTransport

        return NativeTransport
    if text.startswith(("ws://", "wss://")):
        return _on_host(text)
    kind, colon, path = text.partition(":")
    if kind not in ("record", "replay") or not colon or not path:
        raise argparse.ArgumentTypeError(
            f"expected native, record:FILE, replay:FILE, ws://HOST:PORT or wss://HOST:PORT, got {text!a}"
        )
    # The child may run in another directory: a path means what it means here.
    from pilothouse.transports import Player, Recorder

    return (Recorder if kind == "record" else Player)(Path(path).absolute())


def _on_host(url: str) -> Callable[[], Any]:
    from pilothouse.errors import UsageError
    from pilothouse.transports import on_host

    try:
        # Not on the command line, which every process of the machine can read.
        return on_host(url, token=os.environ.get(TOKEN_VARIABLE) or None)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
