"""Builds the handlers for requests of the CLI (hooks, permissions, dialogs, in-process tools) from options.

Owns how these options become handlers, keys of the initialize request, and the flags that they need. The packages
`hooks`, `permissions` and `tools` know what a request means.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from pilothouse.callbacks import CallbackWrapper, wrap_callbacks
from pilothouse.client.custom_tools import TOOL_SERVER, ToolBridge, allowed_tools_for, log_tool_failure, make_bridge
from pilothouse.engine import ChildRun, HandlerSet, RequestHandler, SendControl
from pilothouse.errors import OptionsError, ToolDefinitionError
from pilothouse.hooks.matchers import HookDispatcher, calls_hooks_for
from pilothouse.options import Invocation, Options
from pilothouse.options.permission_facts import PermissionFacts
from pilothouse.options.renderer import InitializeBody
from pilothouse.options.value_structs import is_in_process_server
from pilothouse.options.value_types import TRUE_WORDS
from pilothouse.options.values import PERMISSION_OPTIONS
from pilothouse.permissions.dispatcher import (
    DialogDispatcher,
    ElicitationDispatcher,
    Park,
    PermissionDispatcher,
)
from pilothouse.permissions.requests import PermissionRequest, complete_request
from pilothouse.tools import sdk_server
from pilothouse.tools.mcp_dispatcher import make_mcp_dispatcher

DECIDING_OPTIONS = ("can_use_tool", "confirm", "asks")
"""Permission options whose function decides about tool calls."""
DIALOG_OPTIONS = ("on_elicitation", "on_user_dialog", "supported_dialog_kinds", "asks")
HANDLER_OPTIONS = (*PERMISSION_OPTIONS, *DIALOG_OPTIONS, "hooks", "custom_tools", "mcp_servers")
REPLACEABLE_OPTIONS = frozenset({*PERMISSION_OPTIONS, "on_elicitation", "on_user_dialog", "hooks", "custom_tools"})
"""Options that may change while a child runs."""
TOOL_INITIALIZE_KEYS = frozenset({"sdkMcpServers", "sdkMcpServerConfigs", "sdkMcpServerManifests"})
ALREADY_CONNECTED = "already_connected"
"""State that the CLI reports for a server of an earlier handshake: it then ignores the new manifest."""
SIMPLE_MODE_VARIABLE = "CLAUDE_CODE_SIMPLE"
"""The environment variable for `bare`. The CLI then accepts hooks, confirms them, and never calls them."""


_log = logging.getLogger("pilothouse.permissions")
_warned_versions: set[str] = set()


class RequestHandlers:
    """The handlers for all requests of one child. Make a new object for each child.

    Args:
        options: the settings, all layers together.
        session: what callbacks get as `.session`.
        bridge: runs `custom_tools`; None to make one for this child alone.
        previous: the handlers that the child has had until now; its in-process servers are kept, with their work.

    Attributes:
        bridge: runs `custom_tools`; None where the CLI sends a request for each call (`tool_bridge="mcp"`).
        hooks: the dispatcher of the hooks, if there are any.
        handlers: by subtype of the request.
        initialize_fields: what the initialize request must contain for them.
        child: the child that the handlers work for: it is told of permission requests, and knows who asks.

    Raises:
        UsageError: a hook, callback or tool that cannot work.
    """

    def __init__(
        self,
        options: Options,
        session: Any = None,
        bridge: ToolBridge | None = None,
        previous: RequestHandlers | None = None,
    ) -> None:
        self.bridge = bridge or make_bridge(options)
        self.initialize_fields: dict[str, Any] = {}
        self._option_changes: dict[str, Any] = {}
        self.handlers: dict[str, RequestHandler] = {}
        self.hooks: Any = None
        self._tools: Any = None
        self._session = session
        self._options = options
        self.child: ChildRun | None = None
        self._add_permissions(options)
        self._add_hooks(options, None if previous is None else previous.hooks)
        self._add_dialogs(options)
        if previous is None:
            self._add_tools(options)
        else:
            self._reuse_tools(previous)
        self._attach_bridge()
        if self.has_handlers and options.prompt_via != "stdin":
            name = next(name for name in HANDLER_OPTIONS if getattr(options, name) is not None)
            raise OptionsError(
                f"option {name!r} needs prompt_via='stdin': the argv form has no control protocol", option=name
            )

    def merge_options(self, options: Options) -> Options:
        """Return `options` with the flags that the handlers need."""
        return Options.stack(options, Options.layer(**self._option_changes)) if self._option_changes else options

    def merge_initialize(self, invocation: Invocation) -> Invocation:
        """Return `invocation` with the keys that the handlers need in the initialize request.

        Raises:
            OptionsError: the environment keeps the CLI from calling hooks.
        """
        if self.hooks is not None and invocation.env.get(SIMPLE_MODE_VARIABLE, "").strip().lower() in TRUE_WORDS:
            raise OptionsError(
                f"option 'hooks': {SIMPLE_MODE_VARIABLE} is set in the environment, so the CLI calls no hooks; "
                f"unset it, or pass env={{{SIMPLE_MODE_VARIABLE!r}: None}}",
                option="hooks",
            )
        return replace(
            invocation, initialize=InitializeBody({**(invocation.initialize or {}), **self.initialize_fields})
        )

    @property
    def has_mcp_tools(self) -> bool:
        """Whether there are `custom_tools` that the CLI calls by MCP."""
        return self._tools is not None and TOOL_SERVER in self._tools.server_names

    @property
    def has_handlers(self) -> bool:
        """Whether there are any handlers."""
        return bool(self.handlers) or self.bridge is not None

    def make_handler_set(self) -> HandlerSet:
        """Make the form that the engine takes."""
        serve = self._tools.run_servers if self._tools is not None and self._tools.has_mounted_servers else None
        wrapper = self._options.callback_wrapper
        handlers = {name: partial(_handle_wrapped, wrapper, handler) for name, handler in self.handlers.items()}
        return HandlerSet(handlers, self._on_initialize, self._bind_sender, serve)

    def _on_initialize(self, info: Mapping[str, Any]) -> None:
        if self.hooks is not None:
            self.hooks.check_initialize_response(info)
        self._warn_of_shell_lines(str(info.get("claude_code_version") or "that does not report its version"))
        # A CLI that was already running keeps its old list of tools until it is notified of a change.
        states: Any = info.get("sdk_mcp_manifests_parked")
        if self._tools is not None and isinstance(states, Mapping):
            for name, state in cast("Mapping[str, Any]", states).items():
                if state == ALREADY_CONNECTED:
                    self._tools.notify(name, {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def _warn_of_shell_lines(self, version: str) -> None:
        """Log a warning, once per version, if shell lines of skills and commands would pass by what decides here."""
        options = self._options
        is_guarded = any(getattr(options, name) is not None for name in DECIDING_OPTIONS)
        if version in _warned_versions or not (is_guarded or (options.hooks or {}).get("PreToolUse")):
            return
        if calls_hooks_for("PreSkillShellCommand", version) or not PermissionFacts(options).may_run_shell_lines:
            return
        _warned_versions.add(version)
        _log.warning(
            "in Claude Code %s, shell lines in skills and commands run without a PreToolUse hook, can_use_tool or any "
            "other hook; update it to 2.1.332 and add a hook for PreSkillShellCommand, or set "
            "settings={'disableSkillShellExecution': True}, or load no skills and commands (setting_sources=[])",
            version,
        )

    def _bind_sender(self, send: SendControl) -> None:
        if self._tools is not None:

            def notify(server: str, message: Any) -> None:
                send("mcp_message", {"server_name": server, "message": message})

            self._tools.notify = notify

    def _add_permissions(self, options: Options) -> None:
        functions = {name: getattr(options, name) for name in PERMISSION_OPTIONS}
        if not any(value is not None for value in functions.values()):
            return
        del functions["asks"]
        how: dict[str, Any] = {"session": self._session, "report": self._report, "complete": self._complete}
        self.handlers["can_use_tool"] = PermissionDispatcher(**functions, park=self._make_park(options), **how).handle
        self._option_changes["permission_prompt_tool_name"] = "stdio"

    def _make_park(self, options: Options) -> Park | None:
        if options.asks is None:
            return None
        scope = getattr(self._session, "_supervisor", self)  # the session itself is a weak reference
        return partial(options.asks.park, scope)

    def _report(self, subtype: str, facts: dict[str, Any]) -> None:
        if self.child is not None:
            self.child.router.put_approval_note(subtype, facts, self.child.session_id)

    def _complete(self, request: PermissionRequest) -> PermissionRequest:
        if self.child is None:
            return request
        activity, agent_id = self.child.activity, request.agent_id
        plan = activity.running_tools.find_plan(request.tool_use_id)
        agent = None if agent_id is None else activity.background.find_agent(agent_id)
        return complete_request(request, plan=plan, agent=agent)

    def _add_hooks(self, options: Options, previous: HookDispatcher | None) -> None:
        hooks = options.hooks
        if self.bridge is not None:
            hooks = self.bridge.add_hooks(hooks)
        if not hooks:
            if previous is not None:
                self.initialize_fields["hooks"] = {}
            return
        if options.bare:
            raise OptionsError(
                "options 'bare' and 'hooks' cannot be combined: a bare CLI calls no hooks", option="bare"
            )
        dispatcher = HookDispatcher(hooks)
        if previous is not None and dispatcher.config != previous.config:
            # The CLI may still call one of the previous hooks.
            dispatcher = HookDispatcher(hooks, first_number=previous.next_number)
        self.hooks = dispatcher
        self.handlers["hook_callback"] = dispatcher.handle
        self.initialize_fields["hooks"] = dispatcher.config

    def _attach_bridge(self) -> None:
        """Connect the bridge with the hooks and the permission handler of this child."""
        if self.bridge is None:
            return
        own, permission = self.handlers.get("hook_callback"), self.handlers.get("can_use_tool")
        hook = self.bridge.bind_handlers(own, permission, self._session)
        if hook is not None:
            self.handlers["hook_callback"] = hook

    def _add_dialogs(self, options: Options) -> None:
        if all(getattr(options, name) is None for name in DIALOG_OPTIONS):
            return
        how: dict[str, Any] = {"session": self._session, "report": self._report}
        elicitations = ElicitationDispatcher(options.on_elicitation, park=self._make_park(options), **how)
        dialogs = DialogDispatcher(options.on_user_dialog, options.supported_dialog_kinds or (), **how)
        self.handlers["elicitation"] = elicitations.handle
        self.handlers["request_user_dialog"] = dialogs.handle
        self.initialize_fields |= dialogs.initialize_fields

    def _add_tools(self, options: Options) -> None:
        servers = find_sdk_servers(options.mcp_servers)
        if not servers and not options.custom_tools:
            return
        if options.custom_tools:
            if TOOL_SERVER in servers:
                raise ToolDefinitionError(f"the name {TOOL_SERVER!r} belongs to the server of `custom_tools`")
            if self.bridge is not None:
                self._option_changes |= self.bridge.make_options(options)
            if self.bridge is None or self.bridge.is_declared_by_server:
                servers[TOOL_SERVER] = sdk_server(TOOL_SERVER, options.custom_tools)
                if allowed := allowed_tools_for(options):
                    self._option_changes["allowed_tools"] = allowed
        if not servers:
            return
        self._tools = dispatcher = make_mcp_dispatcher(servers)
        dispatcher.session = self._session
        dispatcher.on_failure = log_tool_failure
        self.handlers["mcp_message"] = dispatcher.handle
        self.initialize_fields |= dispatcher.initialize_fields | {"sdkMcpServerManifests": dispatcher.server_manifests}

    def _reuse_tools(self, previous: RequestHandlers) -> None:
        self._tools = previous._tools
        if self._tools is not None:
            self.handlers["mcp_message"] = self._tools.handle
            self.initialize_fields |= {
                key: value for key, value in previous.initialize_fields.items() if key in TOOL_INITIALIZE_KEYS
            }
            self._option_changes |= {
                key: value for key, value in previous._option_changes.items() if key not in self._option_changes
            }

    def has_same_request_kinds(self, other: RequestHandlers | None) -> bool:
        """Whether both handle permissions, and in-process tools: flags at the start of the CLI depend on that."""
        kinds = ("can_use_tool", "mcp_message")
        return all((kind in self.handlers) == (other is not None and kind in other.handlers) for kind in kinds)

    def replace_tools(self, tools: Sequence[Any]) -> None:
        """Offer these `custom_tools` from now on; their server notifies the CLI."""
        self._tools.get_server(TOOL_SERVER).set_tools(tools)


def _handle_wrapped(
    wrapper: CallbackWrapper | None, handler: RequestHandler, body: Mapping[str, Any]
) -> Awaitable[Mapping[str, Any]]:
    wrap_callbacks(wrapper)  # also None: the child may have been started by a callback of another
    return handler(body)


def find_sdk_servers(servers: Any) -> dict[str, Any]:
    """Return those of `mcp_servers` that run in this process."""
    if not isinstance(servers, Mapping):
        return {}
    return {str(name): value for name, value in servers.items() if is_in_process_server(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def make_handlers(options: Options, session: Any = None, bridge: ToolBridge | None = None) -> RequestHandlers | None:
    """Make the handlers that `options` need; None if they need none."""
    if set(HANDLER_OPTIONS).isdisjoint(options):
        return None
    handlers = RequestHandlers(options, session, bridge)
    return handlers if handlers.has_handlers else None


def make_replacement_handlers(
    previous: RequestHandlers | None, options: Options, changes: Options, session: Any, bridge: ToolBridge | None
) -> RequestHandlers:
    """Make new handlers for a running child.

    Args:
        previous: the handlers that the child has now.
        options: the settings, with the changes.
        changes: the settings that have changed.
        session: what callbacks get as `.session`.
        bridge: runs `custom_tools`.

    Raises:
        OptionsError: the child was started without something that the changes need, or needs a handler that they
            remove.
    """
    tools = changes.custom_tools if "custom_tools" in changes else None
    if tools is not None and (previous is None or not previous.has_mcp_tools):
        raise OptionsError(
            "option 'custom_tools': to change the tools of a session, make it with some", option="custom_tools"
        )
    handlers = RequestHandlers(options, session, bridge, previous)
    if not handlers.has_same_request_kinds(previous):
        name = next((name for name in PERMISSION_OPTIONS if name in changes), "can_use_tool")
        raise OptionsError(
            f"option {name!r}: the CLI decides at its start whether it sends permission requests; make the "
            "session with one of these options, and change it later",
            option=name,
        )
    if tools is not None:
        handlers.replace_tools(tools)
    return handlers
