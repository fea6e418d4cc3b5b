"""What `Options` render to: everything a transport needs to start the peer. Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A value too large or too secret for the command line.

    The transport writes `content` to a file that only the user can read, passes it as `--{flag}={path}`, and
    removes it when the peer has ended.
    """

    flag: str
    suffix: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Invocation:
    """How to start the peer, and what to tell it first.

    Args:
        cli: which CLI: "auto", "bundled", "global" or a path.
        argv: arguments after the executable.
        tail: arguments that must stay last (the prompt of the argv form), after the flags of `files`.
        env: the complete environment of the child.
        cwd: its working directory; None: that of this process.
        initialize: body of the initialize request; None: no handshake (argv form).
        files: values that travel in private files.
        on_stderr: called with every line of standard error, keys removed.
    """

    cli: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None = None
    initialize: Mapping[str, Any] | None = None
    files: tuple[PrivateFile, ...] = ()
    tail: tuple[str, ...] = ()
    on_stderr: Callable[[str], object] | None = None
