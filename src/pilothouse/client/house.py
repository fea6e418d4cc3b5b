"""What the settings of a query or session let this process answer: hooks, permissions, dialogs, in-process tools.

Owns how these settings become desks, keys of the handshake, and the flags that they need. What a question means is the
business of each room; loaded only where one of these settings is set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pilothouse.driver import Desk, Host, Tell
from pilothouse.errors import OptionsError, ToolDefinitionError
from pilothouse.options import Invocation, Options, render
from pilothouse.options.texts import TRUE

if TYPE_CHECKING:
    from pilothouse.tools import ToolFailure

log = logging.getLogger("pilothouse.tools")

PERMISSION_OPTIONS = ("can_use_tool", "confirm", "on_question", "on_plan")
DIALOG_OPTIONS = ("on_elicitation", "on_user_dialog", "supported_dialog_kinds")
HOUSE_OPTIONS = (*PERMISSION_OPTIONS, *DIALOG_OPTIONS, "hooks", "custom_tools", "mcp_servers")
TOOL_SERVER = "tools"
"""Name of the server that offers `custom_tools`: the model sees them as `mcp__tools__<name>`."""
SIMPLE = "CLAUDE_CODE_SIMPLE"
"""What `bare` is for in the environment. The CLI (2.1.330) then takes hooks, says so, and never calls them."""


class House:
    """Everything in this process that one child may ask. Make a new one for each child.

    Args:
        options: the settings, all layers together.
        session: what callbacks get as `.session`.

    Raises:
        UsageError: a hook, callback or tool that cannot work.
    """

    def __init__(self, options: Options, session: Any = None) -> None:
        self._initialize: dict[str, Any] = {}
        self._changes: dict[str, Any] = {}
        self._desks: dict[str, Desk] = {}
        self._hooks: Any = None
        self._tools: Any = None
        self._session = session
        self._open_permissions(options)
        self._open_hooks(options)
        self._open_dialogs(options)
        self._open_tools(options)
        if self._desks and options.prompt_via != "stdin":
            name = next(name for name in HOUSE_OPTIONS if getattr(options, name) is not None)
            raise OptionsError(
                f"option {name!r} needs prompt_via='stdin': the argv form has no control protocol", option=name
            )

    def options(self, options: Options) -> Options:
        """`options` with the flags that this needs."""
        return Options.stack(options, Options.layer(**self._changes)) if self._changes else options

    def invocation(self, invocation: Invocation) -> Invocation:
        """`invocation` with what the CLI must know of this from the handshake.

        Raises:
            OptionsError: the environment is one in which the CLI calls no hooks.
        """
        if self._hooks is not None and invocation.env.get(SIMPLE, "").strip().lower() in TRUE:
            raise OptionsError(
                f"option 'hooks': {SIMPLE} is set in the environment, and then the CLI calls none; "
                f"unset it, or pass env={{{SIMPLE!r}: None}}",
                option="hooks",
            )
        return replace(invocation, initialize={**(invocation.initialize or {}), **self._initialize})

    @property
    def is_open(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self._desks)

    def host(self) -> Host:
        """What the driver needs of it."""
        serve = self._tools.serve if self._tools is not None and self._tools.needs_serving else None
        return Host(self._desks, self._greet, self._connect, serve)

    def _greet(self, info: Mapping[str, Any]) -> None:
        if self._hooks is not None:
            self._hooks.check_server(info)

    def _connect(self, tell: Tell) -> None:
        if self._tools is not None:

            def notify(server: str, message: Any) -> None:
                tell("mcp_message", {"server_name": server, "message": message})

            self._tools.notify = notify

    def _open_permissions(self, options: Options) -> None:
        asked = {name: getattr(options, name) for name in PERMISSION_OPTIONS}
        if not any(value is not None for value in asked.values()):
            return
        from pilothouse.permissions import permission_desk

        mine = next(name for name, value in asked.items() if value is not None)
        rivals = {
            "permission_prompt_tool_name": (options.permission_prompt_tool_name is not None, "one of them answers"),
            "permission_prompts": (options.permission_prompts == "none", "'none' denies without asking"),
        }
        for rival, (is_set, why) in rivals.items():
            if is_set:
                raise OptionsError(f"options {rival!r} and {mine!r} exclude each other: {why}", option=rival)
        desk = permission_desk(**asked)
        desk.session = self._session
        self._desks["can_use_tool"] = desk.answer
        self._changes["permission_prompt_tool_name"] = "stdio"

    def _open_hooks(self, options: Options) -> None:
        if not options.hooks:
            return
        if options.bare:
            raise OptionsError("options 'bare' and 'hooks' exclude each other: a bare CLI calls none", option="bare")
        from pilothouse.hooks import hook_desk

        self._hooks = desk = hook_desk(options.hooks)
        self._desks["hook_callback"] = self._desks["hook"] = desk.answer
        self._initialize["hooks"] = desk.config

    def _open_dialogs(self, options: Options) -> None:
        if all(getattr(options, name) is None for name in DIALOG_OPTIONS):
            return
        from pilothouse.permissions import dialog_desk, elicitation_desk

        elicitations = elicitation_desk(options.on_elicitation)
        dialogs = dialog_desk(options.on_user_dialog, options.supported_dialog_kinds or ())
        elicitations.session = dialogs.session = self._session
        self._desks["elicitation"] = elicitations.answer
        self._desks["request_user_dialog"] = dialogs.answer
        self._initialize |= dialogs.initialize

    def _open_tools(self, options: Options) -> None:
        servers = in_process(options.mcp_servers)
        if not servers and not options.custom_tools:
            return
        from pilothouse.tools import sdk_server, tool_desk

        if options.custom_tools:
            if TOOL_SERVER in servers:
                raise ToolDefinitionError(f"the name {TOOL_SERVER!r} is that of the server of `custom_tools`")
            servers[TOOL_SERVER] = sdk_server(TOOL_SERVER, options.custom_tools)
            if options.can_use_tool is None and options.confirm is None:
                # Nobody is there to ask, and who gave them wants them used.
                self._changes["allowed_tools"] = [*(options.allowed_tools or ()), f"mcp__{TOOL_SERVER}"]
        self._tools = desk = tool_desk(servers)
        desk.session = self._session
        desk.on_failure = _log_failure
        self._desks["mcp_message"] = desk.answer
        self._initialize |= desk.initialize | {"sdkMcpServerManifests": desk.manifests}


def _log_failure(failure: ToolFailure) -> None:
    """The model is told in a line what went wrong; who wrote the tool wants to know where."""
    from pilothouse.tools import ToolExecutionError, ToolResultError, ToolTimeout

    name, error = f"mcp__{failure.server_name}__{failure.tool_name}", failure.error
    if isinstance(error, ToolExecutionError | ToolResultError | ToolTimeout):
        log.error("the tool %s failed: %s", name, error, exc_info=error)
    else:  # told on purpose, or an input of the model that does not fit
        log.info("the tool %s refused: %s", name, error)


def in_process(servers: Any) -> dict[str, Any]:
    """Those of `mcp_servers` that run in this process."""
    from pilothouse.options.shapes import is_in_process

    if not isinstance(servers, Mapping):
        return {}
    return {str(name): value for name, value in servers.items() if is_in_process(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def house_of(options: Options, session: Any = None) -> House | None:
    """The house that `options` ask for, if any."""
    if _HOUSE.isdisjoint(options):
        return None
    house = House(options, session)
    return house if house.is_open else None


def started_with(options: Options, house: House | None, prompt: str | None = None) -> tuple[Invocation, Host | None]:
    """How to start a child with `options`, and what this process offers to it; `prompt` is for the argv form."""
    if house is None:
        return render(options, os.environ, prompt=prompt), None
    return house.invocation(render(house.options(options), os.environ)), house.host()


_HOUSE = frozenset(HOUSE_OPTIONS)
