"""The control requests of the host: one table of handlers, and their responses.

Owns the set of requests. An unknown request gets the CLI's error with the code "unsupported_request", never silence.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pilothouse.native import frames
from pilothouse.native.history import CLI_VERSION
from pilothouse.native.mcp import McpServer, read_servers
from pilothouse.native.models import context_tokens, get_model, list_models
from pilothouse.native.state import SessionState
from pilothouse.native.tool_calls import PermissionChecker
from pilothouse.native.wire import JsonObject, as_object
from pilothouse.transports.concurrency import run_blocking

DEFAULT_READ_BYTES: Final = 1 << 20
"""Default limit of bytes that `read_file` returns."""


INITIALIZE_FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "appendSystemPrompt": str,
    "hooks": dict,
    "jsonSchema": dict,
    "mcpServers": dict,
    "sdkMcpServerConfigs": dict,
    "sdkMcpServers": list,
    "systemPrompt": (list, str),
    "title": str,
}
"""The fields of `initialize` that the engine uses, with their types; all others have no meaning here."""


class ControlRefusedError(Exception):
    """A request cannot be carried out; the host gets the message and the code."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class EngineControls(Protocol):
    """The operations of the engine for control requests."""

    def interrupt(self, *, cancel_queued: bool) -> JsonObject:
        """Interrupt the running turn, if there is one."""
        ...

    def cancel_prompt(self, prompt_uuid: str) -> bool:
        """Remove a prompt from the queue; returns whether it was there."""
        ...

    def connect_server(self, server: McpServer) -> None:
        """Start a handshake in a task."""
        ...

    def end_session(self) -> None:
        """End the session after the response to the request."""
        ...

    @property
    def usage(self) -> JsonObject:
        """Usage of the last reply."""
        ...


PendingPayload = Awaitable[JsonObject | None]


class ControlRequestHandler:
    """Handles the control requests of one session."""

    def __init__(self, state: SessionState, permissions: PermissionChecker, engine: EngineControls) -> None:
        self._state, self._permissions, self._engine = state, permissions, engine
        self._handlers: Final[Mapping[str, Callable[[JsonObject], PendingPayload]]] = {
            "apply_flag_settings": self._apply_flag_settings,
            "cancel_async_message": self._cancel,
            "end_session": self._end_session,
            "get_binary_version": self._version,
            "get_context_usage": self._context_usage,
            "get_hooks_listing": self._hooks_listing,
            "get_session_cost": self._cost,
            "get_settings": self._settings,
            "get_usage": self._usage,
            "initialize": self._initialize,
            "interrupt": self._interrupt,
            "list_models": self._models,
            "list_permission_rules": self._rules,
            "mcp_message": self._mcp_message,
            "mcp_reconnect": self._mcp_reconnect,
            "mcp_set_servers": self._mcp_set_servers,
            "mcp_status": self._mcp_status,
            "mcp_toggle": self._mcp_toggle,
            "read_file": self._read_file,
            "rename_session": self._rename,
            "set_has_subscribers": self._acknowledge,
            "set_max_thinking_tokens": self._thinking,
            "set_model": self._set_model,
            "set_permission_mode": self._set_mode,
        }

    async def handle(self, request_id: str, request: JsonObject) -> None:
        """Respond to any request."""
        subtype = str(request.get("subtype"))
        known = self._handlers.get(subtype)
        wire = self._state.wire
        if known is None:
            await wire.respond_error(
                request_id, f"Unsupported control request subtype: {subtype}", "unsupported_request"
            )
            return
        try:
            payload = await known(request)
        except ControlRefusedError as error:
            await wire.respond_error(request_id, str(error), error.code)
        except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
            await wire.respond_error(request_id, f"{subtype}: {error}")
        else:
            await wire.respond(request_id, payload)

    # The session.

    async def _initialize(self, request: JsonObject) -> JsonObject:
        state = self._state
        for key, kind in INITIALIZE_FIELDS.items():
            if request.get(key) is not None and not isinstance(request[key], kind):
                raise ControlRefusedError(f"initialize: {key} has a wrong type")
        state.hooks.register(request.get("hooks") or {})
        state.initialize_request = request
        if isinstance(request.get("jsonSchema"), dict):
            state.set_schema(request["jsonSchema"])
        if request.get("title"):
            state.history.add_metadata("custom-title", customTitle=str(request["title"]))
        for name, config in read_servers(request).items():
            if name not in state.servers.by_name:
                self._engine.connect_server(state.servers.add(name, config))
        return frames.initialize_response(state, os.getpid())

    async def _interrupt(self, request: JsonObject) -> JsonObject:
        return self._engine.interrupt(cancel_queued=request.get("cancel_queued") is True)

    async def _cancel(self, request: JsonObject) -> JsonObject:
        return {"cancelled": self._engine.cancel_prompt(str(request.get("message_uuid")))}

    async def _end_session(self, request: JsonObject) -> None:
        self._engine.end_session()

    async def _rename(self, request: JsonObject) -> None:
        title = str(request.get("title") or "").strip()
        if not title:
            raise ControlRefusedError("rename_session: no title")
        self._state.history.add_metadata("custom-title", customTitle=title)
        await self._state.wire.send(frames.system("session_title_changed", title=title))

    async def _acknowledge(self, request: JsonObject) -> None:
        return None

    # The model.

    async def _set_model(self, request: JsonObject) -> JsonObject:
        given = request.get("model")
        if given is not None and not isinstance(given, str):
            raise ControlRefusedError("set_model: the model is no text")
        model = self._state.set_model(given)
        shown = f"{given} ({model})" if given and given != model else model
        text = f"<local-command-stdout>Set model to `{shown}`</local-command-stdout>"
        await self._state.wire.send(frames.user(text, isReplay=True))
        return {"model": model}

    async def _thinking(self, request: JsonObject) -> None:
        tokens = request.get("max_thinking_tokens")
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0):
            raise ControlRefusedError("set_max_thinking_tokens: not a number of tokens")
        self._state.thinking_tokens = tokens

    async def _models(self, request: JsonObject) -> JsonObject:
        return {"models": list_models()}

    async def _apply_flag_settings(self, request: JsonObject) -> None:
        settings = as_object(request.get("settings"))
        for key in ("effortLevel", "model"):
            if not isinstance(settings.get(key), str | None):
                raise ControlRefusedError(f"apply_flag_settings: {key} is no text")
        if "effortLevel" in settings:
            self._state.effort = settings["effortLevel"]
        if "model" in settings:
            self._state.set_model(settings["model"])

    # Permissions.

    async def _set_mode(self, request: JsonObject) -> JsonObject:
        mode = str(request.get("mode"))
        code = await self._permissions.set_mode(mode)
        if code is not None:
            raise ControlRefusedError(f"Cannot set permission mode to {mode}", code)
        return {"mode": self._state.permission_mode}

    async def _rules(self, request: JsonObject) -> JsonObject:
        settings = self._state.settings
        rules = [
            {"behavior": behavior, "source": "session", "rule": rule, "editability": "session"}
            for behavior, each in (("allow", settings.allow), ("deny", settings.deny), ("ask", settings.ask))
            for rule in each
        ]
        root = str(self._state.workplace.root)
        state = {"rules": rules, "workspaceDirectories": [], "originalCwd": root, "managedOnly": False}
        return {"state": state}

    async def _hooks_listing(self, request: JsonObject) -> JsonObject:
        return {"events": [], "hooks": self._state.hooks.listing(), "eventCatalog": []}

    # Servers.

    def _get_server(self, request: JsonObject) -> McpServer:
        name = str(request.get("serverName"))
        server = self._state.servers.by_name.get(name)
        if server is None:
            raise ControlRefusedError(f"Server not found: {name}")
        return server

    async def _mcp_status(self, request: JsonObject) -> JsonObject:
        return {"mcpServers": [server.make_status() for server in self._state.servers.by_name.values()]}

    async def _mcp_set_servers(self, request: JsonObject) -> JsonObject:
        servers, wanted = self._state.servers, as_object(request.get("servers"))
        removed = [name for name in servers.by_name if name not in wanted]
        for name in removed:
            del servers.by_name[name]
        added = [name for name in wanted if name not in servers.by_name]
        errors: JsonObject = {}
        for name in added:
            server = servers.add(name, as_object(wanted[name]))
            if server.error:
                errors[name] = server.error
            else:
                self._engine.connect_server(server)
        return {"added": added, "removed": removed, "errors": errors}

    async def _mcp_reconnect(self, request: JsonObject) -> None:
        server = self._get_server(request)
        if not server.error:
            self._engine.connect_server(server)

    async def _mcp_toggle(self, request: JsonObject) -> None:
        server = self._get_server(request)
        if request.get("enabled"):
            self._engine.connect_server(server)
        else:
            server.status = "disabled"

    async def _mcp_message(self, request: JsonObject) -> None:
        server = self._state.servers.by_name.get(str(request.get("server_name")))
        message = as_object(request.get("message"))
        if server is not None and message.get("method") == "notifications/tools/list_changed":
            self._engine.connect_server(server)

    # Information.

    async def _version(self, request: JsonObject) -> JsonObject:
        return {"version": CLI_VERSION}

    async def _cost(self, request: JsonObject) -> JsonObject:
        totals = self._state.totals
        unknown = " (models without a known price not counted)" if totals.has_unknown_cost else ""
        return {"text": f"Estimated cost: ${totals.cost_usd:.4f}{unknown}\nTime of the API: {totals.api_seconds:.1f} s"}

    async def _usage(self, request: JsonObject) -> JsonObject:
        totals = self._state.totals
        session = {
            "total_cost_usd": totals.cost_usd,
            "total_api_duration_ms": round(totals.api_seconds * 1000),
            "model_usage": totals.models,
        }
        return {"session": session, "subscription_type": None, "rate_limits_available": False, "rate_limits": None}

    async def _context_usage(self, request: JsonObject) -> JsonObject:
        window = get_model(self._state.model).window
        tokens = context_tokens(self._engine.usage)
        share = round(100 * tokens / window, 1)
        return {
            "categories": [],
            "totalTokens": tokens,
            "maxTokens": window,
            "rawMaxTokens": window,
            "percentage": share,
            "model": self._state.model,
        }

    async def _settings(self, request: JsonObject) -> JsonObject:
        applied = {"model": self._state.model, "effort": self._state.effort}
        return {"effective": {}, "sources": [], "applied": applied}

    async def _read_file(self, request: JsonObject) -> JsonObject:
        given = str(request.get("path"))
        path = self._state.workplace.resolve_path(given)
        limit = request.get("max_bytes") or DEFAULT_READ_BYTES
        data = await run_blocking(_read_head, path, limit + 1)
        text = data[:limit].decode("utf-8", "replace")
        return {
            "contents": text,
            "absPath": str(path),
            "truncated": len(data) > limit,
            "requested_path": given,
        }


def _read_head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
