"""The flags of `pilothouse demo`, and what was asked for as plain data. Starts nothing and prints nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from pilothouse.options import TABLE

DEMO_HELP = "show what it does; needs no key"
DEMO_DESCRIPTION = "Show what pilothouse does, with the real Claude Code and without a key."
DEMO_EPILOG = """Part 1 asks one question: the embedded open model answers, or the real one if a key is set in the
environment. Part 2 runs the Python program that it shows: the real Claude Code calls a function of it, a hook denies a
command, and a permission is asked, in a temporary directory; what the model says there is scripted.
"""


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """What `pilothouse demo` was asked for."""

    prompt: str
    parts: frozenset[str] = field(default_factory=frozenset[str])
    local: bool = False
    cli: str = "auto"


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--prompt", default="What is the capital of France?", help="the question of part 1")
    force = parser.add_mutually_exclusive_group()
    force.add_argument("--local", action="store_true", help="part 1 with the embedded model even if a key is set")
    force.add_argument("--scripted", action="store_true", help="only part 2, the scripted one")
    parser.add_argument("--cli", default="auto", metavar="PATH", help=TABLE["cli"].doc.replace("%", "%%"))


def demo_request(asked: argparse.Namespace) -> DemoRequest:
    """What the flags say."""
    parts = frozenset({"tools"} if asked.scripted else {"question", "tools"})
    return DemoRequest(prompt=asked.prompt, parts=parts, local=asked.local, cli=asked.cli)
