"""Starts Claude Code on behalf of somebody else: clients of a host and of endpoints, web pages, editors.

`StartRules` complete the invocation of such a child, whoever asked for it. `ConfinedTransport` applies them, and ends
the child if it reports a permission mode that nobody has asked for. What a client may ask for is decided before:
`pilothouse_host.policy` does that for a host; endpoints, front ends and editors choose the options themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import Agent, make_transport
from pilothouse.errors import LineDecodeError, OptionsError, PermissionModeError, ProtocolError
from pilothouse.options import Invocation, Options
from pilothouse.protocol import DEFAULT_MAX_LINE_BYTES, CompleteLines
from pilothouse.support import decode_line, encode_json
from pilothouse.transports import (
    CliTransport,
    Transport,
    TransportFactory,
    TransportFacts,
    TransportWrapper,
    find_facts,
)
from pilothouse_access.permission_modes import MODES_BY_PERMISSIVENESS, permits_more

TOKEN_VARIABLE: Final = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""Holds the token of a host; no child gets it."""
MEMORY_VARIABLE: Final = "CLAUDE_CODE_DISABLE_AUTO_MEMORY"
"""Switches off what the CLI notes about a directory and about agents, which it writes unasked."""
_MEMORY: Final = ("agent-memory/**", "projects/*/memory/**")
_DENY_FLAG: Final = "--disallowedTools="
_MODE_FLAG: Final = "--permission-mode="
_SOURCES_FLAG: Final = "--setting-sources="


class StartRules(Struct, frozen=True, kw_only=True):
    """How a child is started for somebody else.

    Args:
        permission_mode: the highest permission mode that the child may ever report. Default: any.
        setting_sources: what the child loads if its options do not say: of "user", "project" and "local". Default:
            "user" alone, since settings of a repository may run programs and send the key elsewhere. None: what the
            CLI loads by itself.
        allowed_sources: what its options may say. None (default): anything.
        managed_settings: settings with the rank of an administrator's. They are an argument, so no keys.
        memory: whether the child keeps the CLI's memory of its directory. Default: not, unless a variable says so;
            else a session could instruct all later ones there, whoever they belong to.
    """

    permission_mode: str = MODES_BY_PERMISSIVENESS[-1]
    setting_sources: tuple[str, ...] | None = ("user",)
    allowed_sources: tuple[str, ...] | None = None
    managed_settings: Mapping[str, Any] | None = None
    memory: bool = False

    def apply(self, invocation: Invocation) -> Invocation:
        """Return the invocation with what it leaves open. Idempotent.

        The permission mode is always given, since the files that the CLI reads would decide it otherwise.

        Raises:
            OptionsError: the invocation asks for more than the rules allow.
        """
        argv, added = invocation.argv, list[str]()
        for mode in _list_values(argv, _MODE_FLAG):
            if permits_more(mode, self.permission_mode):
                raise OptionsError(
                    f"the permission mode {mode!r} is above {self.permission_mode!r}, the highest that is allowed here",
                    option="permission_mode",
                )
        if not _list_values(argv, _MODE_FLAG):
            added.append(_MODE_FLAG + self.default_mode)
        for sources in _list_values(argv, _SOURCES_FLAG):
            self._check_sources([source.strip() for source in sources.split(",") if source])
        if self.setting_sources is not None and not _list_values(argv, _SOURCES_FLAG):
            added.append(_SOURCES_FLAG + ",".join(self.setting_sources))
        if self.managed_settings is not None:
            # As an argument: the CLI ignores a file for this flag.
            managed = f"--managed-settings={encode_json(self.managed_settings).decode()}"
            added += [managed] if managed not in argv else []
        chosen = {} if self.memory else {MEMORY_VARIABLE: "1"}
        kept = {**chosen, **invocation.env}
        kept.pop(TOKEN_VARIABLE, None)
        if not self.memory and kept[MEMORY_VARIABLE] == "1":  # which stops the reading, but not the writing
            denied = _DENY_FLAG + ",".join(list_memory_rules(kept))
            added += [denied] if denied not in argv else []
        # In front: a flag that waits for a value at the end of `argv` would swallow the next argument.
        return replace(
            invocation,
            argv=(*added, *argv),
            env=kept,
            explicit_env={**chosen, **invocation.explicit_env},
        )

    @property
    def default_mode(self) -> str:
        """The permission mode of a child whose options name none."""
        return self.permission_mode if permits_more("default", self.permission_mode) else "default"

    def _check_sources(self, sources: Sequence[str]) -> None:
        if self.allowed_sources is not None and (above := set(sources) - set(self.allowed_sources)):
            raise OptionsError(
                f"setting sources: {', '.join(sorted(above))} is not allowed here, "
                f"but {', '.join(self.allowed_sources) or 'none'}",
                option="setting_sources",
            )


def find_config_directories(environ: Mapping[str, str]) -> list[str]:
    """Return the directory of the CLI, as it is named and without links, for a child with these variables. Blocking."""
    directory = environ.get("CLAUDE_CONFIG_DIR") or f"{environ.get('HOME') or Path.home()}/.claude"
    return sorted({directory, os.path.realpath(directory)})


def list_memory_rules(environ: Mapping[str, str]) -> list[str]:
    """Return rules for the files with the CLI's memory."""
    return [f"Edit(/{directory}/{name})" for directory in find_config_directories(environ) for name in _MEMORY]


def _list_values(argv: Sequence[str], flag: str) -> list[str]:
    return [argument.removeprefix(flag) for argument in argv if argument.startswith(flag)]


class ConfinedTransport(TransportWrapper):
    """A child that serves somebody else. It gets no prompt before it has said in which permission mode it is.

    Args:
        inner: the transport to the child; not started.
        rules: how it is started.

    Raises:
        PermissionModeError: from `receive`: the child reports a mode above the one that was asked for at its start,
            or later one above the highest of the rules.
    """

    def __init__(self, inner: Transport, rules: StartRules) -> None:
        super().__init__(inner)
        self._rules = rules
        self._start_mode = ""
        self._lines = CompleteLines()
        self._opening: str | None = None  # id of the initialize request, until it is answered
        self._is_holding = True
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ends_input = False
        self._answered = anyio.Event()

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        confined = self._rules.apply(invocation)
        self._start_mode = _list_values(confined.argv, _MODE_FLAG)[-1]
        await self.inner.start(confined)

    async def serve(self) -> None:
        """See `Transport`. Sends what was held back, so that `receive` never waits for the child to read."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_held)
                await self.inner.serve()
        except BaseExceptionGroup as group:
            if len(group.exceptions) != 1:
                raise
            raise group.exceptions[0] from None

    async def send(self, data: bytes) -> None:
        """See `Transport`."""
        if self._is_holding:
            data = b"".join(self._select(data))
        if data:
            await self.inner.send(data)

    def _select(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that may pass before the child has said its mode: the handshake and what belongs to it."""
        *whole, rest = data.split(b"\n")
        for line in [*(each + b"\n" for each in whole), *([rest] if rest else [])]:
            frame = _decode_object(line)
            kind = frame.get("type")
            request = frame.get("request")
            if not self._is_holding or kind == "control_response":
                yield line
            elif self._opening is None and kind == "user":
                self._is_holding = False  # without a handshake, the first message after the prompt says the mode
                yield line
            elif self._opening is None:
                if isinstance(request, Mapping) and cast("Mapping[str, Any]", request).get("subtype") == "initialize":
                    self._opening = str(frame.get("request_id"))
                yield line
            else:
                self._held.append(line)
                self._held_bytes += len(line)
                if self._held_bytes > DEFAULT_MAX_LINE_BYTES:
                    raise ProtocolError("too much input came before Claude Code had answered the handshake")

    async def _send_held(self) -> None:
        await self._answered.wait()
        try:
            while self._held:
                await self.inner.send(self._held.pop(0))
            self._is_holding = False
            if self._ends_input:
                await self.inner.end_input()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._is_holding = False  # the child has ended: `receive` tells how

    async def end_input(self) -> None:
        """See `Transport`."""
        if self._is_holding and self._opening is not None:
            self._ends_input = True
        else:
            await self.inner.end_input()

    async def receive(self) -> bytes:
        """See `Transport`."""
        data = await self.inner.receive()
        if self._is_watching:
            for line in self._lines.feed(data).split(b"\n"):
                is_answer = not self._answered.is_set() and b'"control_response"' in line
                if is_answer or b'"permissionMode"' in line:
                    self._check(_decode_object(line))
        return data

    @property
    def _is_watching(self) -> bool:
        return not self._answered.is_set() or self._rules.permission_mode != MODES_BY_PERMISSIVENESS[-1]

    def _check(self, frame: Mapping[str, Any]) -> None:
        match frame:
            case {"type": "control_response", "response": {"request_id": str(request_id), **response}}:
                body: Any = response.get("response")
                if request_id == self._opening and not self._answered.is_set():
                    if isinstance(body, Mapping):
                        self._check_mode(cast("Mapping[str, Any]", body).get("current_permission_mode"), at_start=True)
                    self._answered.set()
            case {"type": "system", "permissionMode": mode}:
                self._check_mode(mode)
            case _:
                pass

    def _check_mode(self, mode: Any, *, at_start: bool = False) -> None:
        highest = self._start_mode if at_start else self._rules.permission_mode
        if mode is not None and permits_more(str(mode), highest):
            raise PermissionModeError(
                f"Claude Code is in the permission mode {mode!r}, and {highest!r} is the highest that is allowed here, "
                "so the session was ended. Look for `permissions.defaultMode` in settings and for `permissionMode` in "
                "agents that it loads",
                mode=str(mode),
                highest=highest,
            )


class ConfinedTransports(TransportFactory):
    """Makes the transports of an agent that serves somebody else: give it to its sessions as the option `transport`.

    Args:
        agent: the agent, whose own option `transport` makes the connection; or its options.
        rules: how its children are started.
    """

    def __init__(self, agent: Agent | Options, rules: StartRules = StartRules()) -> None:  # noqa: B008 - immutable
        self._agent = agent
        self._rules = rules

    @property
    def _options(self) -> Options:
        given = self._agent
        options = given.options if isinstance(given, Agent) else given
        return options.with_(session_store=None)  # the session adds it to what this makes

    def __call__(self) -> Transport:
        """Make a transport for one child."""
        return ConfinedTransport(make_transport(self._options), self._rules)

    def adapt_invocation(self, invocation: Invocation) -> Invocation:
        """Return how a query starts its child, as the factory of the agent wants it."""
        given = self._options.transport
        return given.adapt_invocation(invocation) if isinstance(given, TransportFactory) else invocation

    @property
    def facts(self) -> TransportFacts:
        """What holds for the agent's own transports."""
        given = self._options.transport
        return CliTransport.facts if given is None else find_facts(given)


def _decode_object(line: bytes) -> Mapping[str, Any]:
    try:
        found = decode_line(line)
    except LineDecodeError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
