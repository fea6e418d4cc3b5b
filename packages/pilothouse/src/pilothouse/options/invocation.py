"""The result of rendering `Options`: everything a transport needs to start the CLI. Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr


class PrivateFile(Struct, frozen=True):
    """A value too large or too secret for the command line.

    The transport writes `content` to a file that only the user can read, passes it as `--{flag}={path}`, and removes
    the file when the child has ended.
    """

    flag: str
    suffix: str
    content: bytes

    def __repr__(self) -> str:
        return f"PrivateFile({self.flag!r}, {len(self.content)} bytes)"


class ChildEnvironment(dict[str, str]):
    """The environment of a child. Its repr shows no value: error reporters print the variables of every frame."""

    def __repr__(self) -> str:
        return f"<environment of {len(self)} variables>"


class ExplicitEnvironment(dict[str, str | None]):
    """The variables that the settings name. Its repr shows no value either."""

    def __repr__(self) -> str:
        return f"<{len(self)} variables>"


class InitializeBody(dict[str, Any]):
    """The body of the initialize request, which may hold keys. Its repr shows only the names of its fields."""

    def __repr__(self) -> str:
        return f"<handshake with {', '.join(self) or 'no fields'}>"


class InitializeLine(bytes):
    """The line of the initialize request. Its repr shows only its length."""

    def __repr__(self) -> str:
        return f"<handshake of {len(self)} bytes>"


class IsolatedHome(Protocol):
    """A home directory for children, made when the first of them starts and removed by its owner."""

    def ensure(self, owner: tuple[int, int] | None = None) -> str:
        """Make the directory for this user and group, if it does not exist yet; return its path. Blocking."""
        ...


class Invocation(Struct, frozen=True):
    """How to start the child, and what to send first.

    Args:
        cli: which CLI: "auto", "bundled", "global" or a path.
        argv: arguments after the executable.
        env: the complete environment of the child. It may hold keys, so it is never shown.
        cwd: its working directory; None: that of this process.
        initialize: body of the initialize request; None: no handshake (argv form). It is the first line that the child
            gets, in the bytes that a new `protocol.Connection` makes of it, so that a transport may know it before.
        files: values that travel in private files.
        trailing_args: arguments that must stay last (the prompt of the argv form), after the flags of `files`.
        on_stderr: called with every line of standard error, keys removed.
        user: user of this system to run the child as; None: that of this process.
        is_isolated: give the child a HOME of its own, which is removed with the child.
        home: that HOME, if several children share it; None: the transport makes and removes one.
        has_generated_session_id: the session id in `argv` is generated: a child that already runs may have another.
        keep_detached: processes that the child has detached outlive it.
        explicit_env: those variables of `env` that the settings name; a None value: not to be inherited. No other
            variable of `env` may leave this machine.
    """

    cli: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    initialize: Mapping[str, Any] | None = None
    files: tuple[PrivateFile, ...] = ()
    trailing_args: tuple[str, ...] = ()
    on_stderr: Callable[[str], object] | None = None
    user: str | int | None = None
    is_isolated: bool = False
    home: IsolatedHome | None = None
    has_generated_session_id: bool = False
    keep_detached: bool = False
    explicit_env: Mapping[str, str | None] = {}

    def __post_init__(self) -> None:
        # Whoever makes or replaces them gives plain mappings; error reporters print the variables of every frame.
        if not isinstance(self.env, ChildEnvironment):
            force_setattr(self, "env", ChildEnvironment(self.env))
        if self.initialize is not None and not isinstance(self.initialize, InitializeBody):
            force_setattr(self, "initialize", InitializeBody(self.initialize))

    def __repr__(self) -> str:
        return f"Invocation(cli={self.cli!r}, argv={self.argv!r}, cwd={self.cwd!r}, files={self.files!r})"
