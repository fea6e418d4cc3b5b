"""What the settings of a query or session let this process answer: hooks, permissions, dialogs, in-process tools.

Owns how these settings become desks, keys of the handshake, and the flags that they need. What a question means is the
business of each room; loaded only where one of these settings is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from pilothouse.client.given_tools import TOOL_SERVER, allowed_with, log_failure
from pilothouse.driver import Desk
from pilothouse.errors import OptionsError, ToolDefinitionError
from pilothouse.options import Invocation, Options, render
from pilothouse.options.invocation import Handshake
from pilothouse.options.texts import TRUE

if TYPE_CHECKING:
    from pilothouse.client.bridging import Bridge
    from pilothouse.driver import Host, Tell
    from pilothouse.hooks.desk import HookDesk

PERMISSION_OPTIONS = ("can_use_tool", "confirm", "on_question", "on_plan")
DIALOG_OPTIONS = ("on_elicitation", "on_user_dialog", "supported_dialog_kinds")
HOUSE_OPTIONS = (*PERMISSION_OPTIONS, *DIALOG_OPTIONS, "hooks", "custom_tools", "mcp_servers")
HANDLERS = frozenset({*PERMISSION_OPTIONS, "on_elicitation", "on_user_dialog", "hooks", "custom_tools"})
"""What may change while a child runs."""
TOOL_KEYS = frozenset({"sdkMcpServers", "sdkMcpServerConfigs", "sdkMcpServerManifests"})
ALREADY_CONNECTED = "already_connected"
"""What the CLI (2.1.330) says of a server that it has from an earlier handshake: it does not look at the manifest."""
SIMPLE = "CLAUDE_CODE_SIMPLE"
"""What `bare` is for in the environment. The CLI (2.1.330) then takes hooks, says so, and never calls them."""


class House:
    """Everything in this process that one child may ask. Make a new one for each child.

    Args:
        options: the settings, all layers together.
        session: what callbacks get as `.session`.
        bridge: what runs `custom_tools`; None to make one for this child alone.
        before: the one that the child has had until now; its in-process servers stay, with what they are at.

    Attributes:
        bridge: what runs `custom_tools`; None where the CLI asks for each call (`tool_bridge="mcp"`).
        hooks: what answers for them, if there are any.
        desks: who answers, by subtype of the question.
        told: what the CLI has to know of it from the handshake.
        report: hears what is asked here of people and how it is settled: `ASKED` or `SETTLED`, and the facts.

    Raises:
        UsageError: a hook, callback or tool that cannot work.
    """

    def __init__(
        self, options: Options, session: Any = None, bridge: Bridge | None = None, before: House | None = None
    ) -> None:
        self.bridge = bridge or _bridge_of(options)
        if self.bridge is not None:
            self.bridge.host.session = session
        self.told: dict[str, Any] = {}
        self._changes: dict[str, Any] = {}
        self.desks: dict[str, Desk] = {}
        self.hooks: Any = None
        self._tools: Any = None
        self._session = session
        self.report: Callable[[str, dict[str, Any]], object] | None = None
        self._open_permissions(options)
        self._open_hooks(options, None if before is None else before.hooks)
        self._open_dialogs(options)
        if before is None:
            self._open_tools(options)
        else:
            self._keep_tools(before)
        self._attach()
        if self.is_open and options.prompt_via != "stdin":
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
        if self.hooks is not None and invocation.env.get(SIMPLE, "").strip().lower() in TRUE:
            raise OptionsError(
                f"option 'hooks': {SIMPLE} is set in the environment, and then the CLI calls none; "
                f"unset it, or pass env={{{SIMPLE!r}: None}}",
                option="hooks",
            )
        return replace(invocation, initialize=Handshake({**(invocation.initialize or {}), **self.told}))

    @property
    def offers_tools(self) -> bool:
        """Whether there are `custom_tools` that the CLI calls by MCP."""
        return self._tools is not None and TOOL_SERVER in self._tools.names

    @property
    def is_open(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self.desks) or self.bridge is not None

    def host(self) -> Host:
        """What the driver needs of it."""
        from pilothouse.driver import Host

        serve = self._tools.serve if self._tools is not None and self._tools.needs_serving else None
        return Host(self.desks, self._greet, self._connect, serve)

    def _greet(self, info: Mapping[str, Any]) -> None:
        if self.hooks is not None:
            self.hooks.check_server(info)
        # A CLI that was there before keeps its own list of the tools, until it is told that there is another.
        states: Any = info.get("sdk_mcp_manifests_parked")
        if self._tools is not None and isinstance(states, Mapping):
            for name, state in cast("Mapping[str, Any]", states).items():
                if state == ALREADY_CONNECTED and self._tools.notify is not None:
                    self._tools.notify(name, {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

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
        desk.session, desk.report = self._session, self._report
        self.desks["can_use_tool"] = desk.answer
        self._changes["permission_prompt_tool_name"] = "stdio"

    def _report(self, subtype: str, facts: dict[str, Any]) -> None:
        if self.report is not None:
            self.report(subtype, facts)

    def _open_hooks(self, options: Options, before: HookDesk | None) -> None:
        hooks = options.hooks
        if self.bridge is not None:
            from pilothouse.client.bridging import with_deferral

            hooks = with_deferral(hooks, self.bridge)
        if not hooks:
            if before is not None:
                self.told["hooks"] = {}
            return
        if options.bare:
            raise OptionsError("options 'bare' and 'hooks' exclude each other: a bare CLI calls none", option="bare")
        from pilothouse.hooks import hook_desk

        desk = hook_desk(hooks)
        if before is not None and desk.config != before.config:
            desk = hook_desk(hooks, first=before.next)  # the CLI may still ask for one of those before
        self.hooks = desk
        self.desks["hook_callback"] = desk.answer
        self.told["hooks"] = desk.config

    def _attach(self) -> None:
        """The bridge asks the hooks and the permissions of this child, and hears what the hooks say."""
        if self.bridge is None:
            return
        hook = self.bridge.attach(self.desks.get("hook_callback"), self.desks.get("can_use_tool"))
        if hook is not None:
            self.desks["hook_callback"] = hook

    def _open_dialogs(self, options: Options) -> None:
        if all(getattr(options, name) is None for name in DIALOG_OPTIONS):
            return
        from pilothouse.permissions import dialog_desk, elicitation_desk

        elicitations = elicitation_desk(options.on_elicitation)
        dialogs = dialog_desk(options.on_user_dialog, options.supported_dialog_kinds or ())
        elicitations.session = dialogs.session = self._session
        elicitations.report = dialogs.report = self._report
        self.desks["elicitation"] = elicitations.answer
        self.desks["request_user_dialog"] = dialogs.answer
        self.told |= dialogs.initialize

    def _open_tools(self, options: Options) -> None:
        servers = in_process(options.mcp_servers)
        if not servers and not options.custom_tools:
            return
        from pilothouse.tools import sdk_server, tool_desk

        if options.custom_tools:
            if TOOL_SERVER in servers:
                raise ToolDefinitionError(f"the name {TOOL_SERVER!r} is that of the server of `custom_tools`")
            if self.bridge is not None:
                from pilothouse.client.bridging import bridge_changes

                self._changes |= bridge_changes(self.bridge, options)
            if self.bridge is None or self.bridge.is_declared_by_server:
                servers[TOOL_SERVER] = sdk_server(TOOL_SERVER, options.custom_tools)
                if allowed := allowed_with(options):
                    self._changes["allowed_tools"] = allowed
        if not servers:
            return
        self._tools = desk = tool_desk(servers)
        desk.session = self._session
        desk.on_failure = log_failure
        self.desks["mcp_message"] = desk.answer
        self.told |= desk.initialize | {"sdkMcpServerManifests": desk.manifests}

    def _keep_tools(self, before: House) -> None:
        self._tools = before._tools
        if self._tools is not None:
            self.desks["mcp_message"] = self._tools.answer
            self.told |= {key: value for key, value in before.told.items() if key in TOOL_KEYS}
            self._changes |= {key: value for key, value in before._changes.items() if key not in self._changes}

    def is_told_as(self, other: House | None) -> bool:
        """Whether the CLI has to know of this what it knows of the other."""
        return other is not None and self.told == other.told

    def asks_as(self, other: House | None) -> bool:
        """Whether the CLI asks for permission, and has in-process tools, as with the other; it is started for that."""
        kinds = ("can_use_tool", "mcp_message")
        return all((kind in self.desks) == (other is not None and kind in other.desks) for kind in kinds)

    def take_tools(self, tools: Sequence[Any]) -> None:
        """Offer these `custom_tools` from now on; the CLI is told by the server that has them."""
        self._tools.server(TOOL_SERVER).set_tools(tools)


def in_process(servers: Any) -> dict[str, Any]:
    """Those of `mcp_servers` that run in this process."""
    from pilothouse.options.shapes import is_in_process

    if not isinstance(servers, Mapping):
        return {}
    return {str(name): value for name, value in servers.items() if is_in_process(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _bridge_of(options: Options) -> Bridge | None:
    if not options.custom_tools or options.tool_bridge == "mcp":
        return None
    from pilothouse.client.bridging import make_bridge

    return make_bridge(options)


def house_of(options: Options, session: Any = None, bridge: Bridge | None = None) -> House | None:
    """The house that `options` ask for, if any; see `House`."""
    if _HOUSE.isdisjoint(options):
        return None
    house = House(options, session, bridge)
    return house if house.is_open else None


def house_after(before: House | None, options: Options, changes: Options, session: Any, bridge: Bridge | None) -> House:
    """The house of a child that runs already; `changes` are those of its settings that are new in `options`.

    Raises:
        OptionsError: it was started without something that they need, or with something that nobody answers for then.
    """
    tools = changes.custom_tools if "custom_tools" in changes else None
    if tools is not None and (before is None or not before.offers_tools):
        raise OptionsError(
            "option 'custom_tools': a session whose tools are to change is made with some", option="custom_tools"
        )
    house = House(options, session, bridge, before)
    if not house.asks_as(before):
        name = next((name for name in PERMISSION_OPTIONS if name in changes), "can_use_tool")
        raise OptionsError(
            f"option {name!r}: whether the CLI asks for permission is fixed when it starts; make the session with one "
            "of these, and change it then",
            option=name,
        )
    if tools is not None:
        house.take_tools(tools)
    return house


def started_with(options: Options, house: House | None, prompt: str | None = None) -> tuple[Invocation, Host | None]:
    """How to start a child with `options`, and what this process offers to it; `prompt` is for the argv form."""
    if house is None:
        invocation, host = render(options, os.environ, prompt=prompt), None
    else:
        invocation, host = house.invocation(render(house.options(options), os.environ)), house.host()
    if not options.wait_for_mcp:
        return invocation, host
    from pilothouse.client.mcp_waiting import with_wait

    return invocation, with_wait(host, options)


_HOUSE = frozenset(HOUSE_OPTIONS)
