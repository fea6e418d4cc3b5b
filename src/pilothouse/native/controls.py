"""What the host may ask of the engine: one table of control requests, and their answers.

Owns which there are. A request that the engine knows nothing of gets the CLI's error with the code
"unsupported_request", never silence.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pilothouse.native import frames
from pilothouse.native.history import CLI_VERSION
from pilothouse.native.mcp import McpServer, servers_of
from pilothouse.native.models import context_tokens, model_of, offered
from pilothouse.native.permitting import Permitting
from pilothouse.native.shapes import JSON, mapping
from pilothouse.native.state import State
from pilothouse.transports.errands import run_briefly

READ_BYTES: Final = 1 << 20
"""Of a file that `read_file` gives, unless it is told otherwise."""


INITIALIZE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "appendSystemPrompt": str,
    "hooks": dict,
    "jsonSchema": dict,
    "mcpServers": dict,
    "sdkMcpServerConfigs": dict,
    "sdkMcpServers": list,
    "systemPrompt": (list, str),
    "title": str,
}
"""What of `initialize` the engine uses, and of which type it is. The rest is for what does not exist here."""


class ControlRefusedError(Exception):
    """A request cannot be carried out; the message and the code go to the host."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Conductor(Protocol):
    """What the engine does for control requests."""

    def interrupt(self, *, cancel_queued: bool) -> JSON:
        """Interrupt the turn that runs, if one does."""
        ...

    def cancel(self, name: str) -> bool:
        """Take a prompt out of the queue."""
        ...

    def connect_server(self, server: McpServer) -> None:
        """Begin a handshake beside everything else."""
        ...

    def end(self) -> None:
        """End the session once the request is answered."""
        ...

    @property
    def usage(self) -> JSON:
        """Usage of the last reply."""
        ...


Answer = Awaitable[JSON | None]


class Controls:
    """Answers control requests of one session."""

    def __init__(self, state: State, permitting: Permitting, conductor: Conductor) -> None:
        self._state, self._permitting, self._conductor = state, permitting, conductor
        self._table: Final[Mapping[str, Callable[[JSON], Answer]]] = {
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
            "set_has_subscribers": self._nothing,
            "set_max_thinking_tokens": self._thinking,
            "set_model": self._set_model,
            "set_permission_mode": self._set_mode,
        }

    async def answer(self, request_id: str, request: JSON) -> None:
        """Answer a request, whatever it is."""
        subtype = str(request.get("subtype"))
        known = self._table.get(subtype)
        wire = self._state.wire
        if known is None:
            await wire.refuse(request_id, f"Unsupported control request subtype: {subtype}", "unsupported_request")
            return
        try:
            payload = await known(request)
        except ControlRefusedError as error:
            await wire.refuse(request_id, str(error), error.code)
        except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
            await wire.refuse(request_id, f"{subtype}: {error}")
        else:
            await wire.answer(request_id, payload)

    # The session.

    async def _initialize(self, request: JSON) -> JSON:
        state = self._state
        for key, kind in INITIALIZE.items():
            if request.get(key) is not None and not isinstance(request[key], kind):
                raise ControlRefusedError(f"initialize: {key} has a wrong type")
        state.hooks.set(request.get("hooks") or {})
        state.told = request
        if isinstance(request.get("jsonSchema"), dict):
            state.wants(request["jsonSchema"])
        if request.get("title"):
            state.history.note("custom-title", customTitle=str(request["title"]))
        for name, config in servers_of(request).items():
            if name not in state.servers.by_name:
                self._conductor.connect_server(state.servers.add(name, config))
        return frames.initialized(state, os.getpid())

    async def _interrupt(self, request: JSON) -> JSON:
        return self._conductor.interrupt(cancel_queued=request.get("cancel_queued") is True)

    async def _cancel(self, request: JSON) -> JSON:
        return {"cancelled": self._conductor.cancel(str(request.get("message_uuid")))}

    async def _end_session(self, request: JSON) -> None:
        self._conductor.end()

    async def _rename(self, request: JSON) -> None:
        title = str(request.get("title") or "").strip()
        if not title:
            raise ControlRefusedError("rename_session: no title")
        self._state.history.note("custom-title", customTitle=title)
        await self._state.wire.say(frames.system("session_title_changed", title=title))

    async def _nothing(self, request: JSON) -> None:
        return None

    # The model.

    async def _set_model(self, request: JSON) -> JSON:
        given = request.get("model")
        if given is not None and not isinstance(given, str):
            raise ControlRefusedError("set_model: the model is no text")
        model = self._state.choose(given)
        shown = f"{given} ({model})" if given and given != model else model
        text = f"<local-command-stdout>Set model to `{shown}`</local-command-stdout>"
        await self._state.wire.say(frames.user(text, isReplay=True))
        return {"model": model}

    async def _thinking(self, request: JSON) -> None:
        tokens = request.get("max_thinking_tokens")
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0):
            raise ControlRefusedError("set_max_thinking_tokens: not a number of tokens")
        self._state.thinking_tokens = tokens

    async def _models(self, request: JSON) -> JSON:
        return {"models": offered()}

    async def _apply_flag_settings(self, request: JSON) -> None:
        told = mapping(request.get("settings"))
        for key in ("effortLevel", "model"):
            if not isinstance(told.get(key), str | None):
                raise ControlRefusedError(f"apply_flag_settings: {key} is no text")
        if "effortLevel" in told:
            self._state.effort = told["effortLevel"]
        if "model" in told:
            self._state.choose(told["model"])

    # Permissions.

    async def _set_mode(self, request: JSON) -> JSON:
        mode = str(request.get("mode"))
        code = await self._permitting.set_mode(mode)
        if code is not None:
            raise ControlRefusedError(f"Cannot set permission mode to {mode}", code)
        return {"mode": self._state.mode}

    async def _rules(self, request: JSON) -> JSON:
        settings = self._state.settings
        rules = [
            {"behavior": behavior, "source": "session", "rule": rule, "editability": "session"}
            for behavior, each in (("allow", settings.allow), ("deny", settings.deny), ("ask", settings.ask))
            for rule in each
        ]
        root = str(self._state.workplace.root)
        state = {"rules": rules, "workspaceDirectories": [], "originalCwd": root, "managedOnly": False}
        return {"state": state}

    async def _hooks_listing(self, request: JSON) -> JSON:
        return {"events": [], "hooks": self._state.hooks.listing(), "eventCatalog": []}

    # Servers.

    def _server(self, request: JSON) -> McpServer:
        name = str(request.get("serverName"))
        server = self._state.servers.by_name.get(name)
        if server is None:
            raise ControlRefusedError(f"Server not found: {name}")
        return server

    async def _mcp_status(self, request: JSON) -> JSON:
        return {"mcpServers": [server.about() for server in self._state.servers.by_name.values()]}

    async def _mcp_set_servers(self, request: JSON) -> JSON:
        servers, wanted = self._state.servers, mapping(request.get("servers"))
        removed = [name for name in servers.by_name if name not in wanted]
        for name in removed:
            del servers.by_name[name]
        added = [name for name in wanted if name not in servers.by_name]
        errors: JSON = {}
        for name in added:
            server = servers.add(name, mapping(wanted[name]))
            if server.error:
                errors[name] = server.error
            else:
                self._conductor.connect_server(server)
        return {"added": added, "removed": removed, "errors": errors}

    async def _mcp_reconnect(self, request: JSON) -> None:
        server = self._server(request)
        if not server.error:
            self._conductor.connect_server(server)

    async def _mcp_toggle(self, request: JSON) -> None:
        server = self._server(request)
        if request.get("enabled"):
            self._conductor.connect_server(server)
        else:
            server.status = "disabled"

    async def _mcp_message(self, request: JSON) -> None:
        server = self._state.servers.by_name.get(str(request.get("server_name")))
        message = mapping(request.get("message"))
        if server is not None and message.get("method") == "notifications/tools/list_changed":
            self._conductor.connect_server(server)

    # What is known.

    async def _version(self, request: JSON) -> JSON:
        return {"version": CLI_VERSION}

    async def _cost(self, request: JSON) -> JSON:
        spending = self._state.spending
        unknown = " (models without a known price not counted)" if spending.unknown else ""
        return {"text": f"Estimated cost: ${spending.usd:.4f}{unknown}\nTime of the API: {spending.api_seconds:.1f} s"}

    async def _usage(self, request: JSON) -> JSON:
        spending = self._state.spending
        session = {
            "total_cost_usd": spending.usd,
            "total_api_duration_ms": round(spending.api_seconds * 1000),
            "model_usage": spending.models,
        }
        return {"session": session, "subscription_type": None, "rate_limits_available": False, "rate_limits": None}

    async def _context_usage(self, request: JSON) -> JSON:
        window = model_of(self._state.model).window
        tokens = context_tokens(self._conductor.usage)
        share = round(100 * tokens / window, 1)
        return {
            "categories": [],
            "totalTokens": tokens,
            "maxTokens": window,
            "rawMaxTokens": window,
            "percentage": share,
            "model": self._state.model,
        }

    async def _settings(self, request: JSON) -> JSON:
        applied = {"model": self._state.model, "effort": self._state.effort}
        return {"effective": {}, "sources": [], "applied": applied}

    async def _read_file(self, request: JSON) -> JSON:
        given = str(request.get("path"))
        path = self._state.workplace.path(given)
        limit = request.get("max_bytes") or READ_BYTES
        data = await run_briefly(_head, path, limit + 1)
        text = data[:limit].decode("utf-8", "replace")
        return {
            "contents": text,
            "absPath": str(path),
            "truncated": len(data) > limit,
            "requested_path": given,
        }


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
