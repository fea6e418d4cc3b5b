"""Checks each line that a client sends to its running child, before the child gets the line.

Owns which control requests a host accepts. Without limits, only those are refused that would send the host's key
elsewhere. With any limit, those that are not on the list are refused as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pilothouse.errors import LineDecodeError, PilothouseError, ProtocolError
from pilothouse.messages.json_lines import decode_line, encode_json
from pilothouse.server.policy import ClientLimits, HostPolicy, Refusal
from pilothouse.server.powers import Powers

TAKEN_TYPES = frozenset({"user", "control_request", "control_response", "control_cancel_request", "keep_alive"})
TAKEN_REQUESTS = frozenset(
    {
        "apply_flag_settings",
        "background_tasks",
        "cancel_async_message",
        "end_session",
        "get_binary_version",
        "get_context_usage",
        "get_hooks_listing",
        "get_session_cost",
        "get_settings",
        "get_task_output",
        "get_usage",
        "initialize",
        "interrupt",
        "list_models",
        "list_permission_rules",
        "mcp_message",
        "mcp_read_resource",
        "mcp_reconnect",
        "mcp_set_servers",
        "mcp_status",
        "mcp_toggle",
        "reload_output_styles",
        "reload_skills",
        "rename_session",
        "rewind_files",
        "set_max_thinking_tokens",
        "set_model",
        "set_permission_mode",
        "stop_task",
    }
)
# Values from other sources: a tool's input or result may look like anything.
_FOREIGN = frozenset({"updatedInput", "mcp_response"})
# A line without these holds no control frame, however its names are escaped.
_MARKS = (b"control_re", b"update_env", b"\\u")


class RequestRefused(PilothouseError):  # noqa: N818 - it becomes a response
    """The host refuses to pass on a control request.

    Args:
        request_id: of the request.
        message: the reason.
    """

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id

    def answer(self) -> bytes:
        """Return the response line that the child would send."""
        response = {"subtype": "error", "request_id": self.request_id, "error": str(self)}
        return encode_json({"type": "control_response", "response": response}) + b"\n"


class InputCheck:
    """Checks the lines of one client.

    Args:
        policy: of the host.
    """

    def __init__(self, policy: HostPolicy) -> None:
        self._policy = policy
        self._limits = policy.limits
        self._is_limited = policy.limits != ClientLimits()

    def check(self, line: bytes) -> bytes:
        """Return the line as the child gets it.

        Args:
            line: one whole line.

        Raises:
            RequestRefused: the line is a control request that the host refuses; the client needs the response.
            ProtocolError: the line is something else that the host refuses.
        """
        if not self._is_limited and not any(mark in line for mark in _MARKS):
            return line
        said = _decoded(line)
        if said is None:
            return line
        kind = said.get("type")
        if kind == "update_environment_variables" or (self._is_limited and kind not in TAKEN_TYPES):
            raise ProtocolError(f"this host does not take messages of type {str(kind)[:80]!r}")
        if kind == "control_request":
            self._check_request(said)
        elif kind == "control_response" and self._is_limited:
            self._check_response(said)
        elif kind == "user" and self._limits.verbatim_prompts and said.get("client_composed") is not True:
            return encode_json({**said, "client_composed": True}) + b"\n"
        return line

    def _check_request(self, said: Mapping[str, Any]) -> None:
        body = said.get("request")
        request: Mapping[str, Any] = cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else said
        subtype = str(request.get("subtype"))
        try:
            self._check_body(subtype, request)
        except Refusal as refusal:
            raise RequestRefused(str(said.get("request_id")), str(refusal)) from None

    def _check_body(self, subtype: str, request: Mapping[str, Any]) -> None:
        if self._is_limited and subtype not in TAKEN_REQUESTS:
            raise Refusal("forbidden", f"this host does not take control requests {subtype[:80]!r}")
        found = Powers()
        self._policy.look_into_handshake(request, found)
        if isinstance(settings := request.get("settings"), Mapping):
            self._policy.look_into_settings("settings", cast("Mapping[str, Any]", settings), found)
        found.look_into_servers(request.get("servers"))
        if isinstance(mode := request.get("mode"), str):
            found.modes.add(mode)
        if request.get("add_plugins"):
            found.programs.add("plugins")
        self._limits.check_powers(found, subtype)
        if self._policy.needs_own_key(found):
            raise Refusal("forbidden", f"{subtype}: say where the API is, and with which key, when the session starts")

    def _check_response(self, said: Mapping[str, Any]) -> None:
        for update in _mappings(said):
            if update.get("type") == "setMode":
                try:
                    self._limits.check_mode(str(update.get("mode")), "the answer")
                except Refusal as refusal:
                    raise ProtocolError(str(refusal)) from None


def _decoded(line: bytes) -> Mapping[str, Any] | None:
    """Decode a line to an object; None if no reader, whatever its line ends, can take the line for an object."""
    try:
        said = decode_line(line)
    except LineDecodeError:
        if b"{" in line:
            raise ProtocolError("a line of input is not valid JSON, or is nested too deeply") from None
        return None
    if b"\r" in line.rstrip(b"\r\n"):
        raise ProtocolError("a line of input has a carriage return in it")
    return cast("Mapping[str, Any]", said) if isinstance(said, Mapping) else None


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        yield found
        for name, item in found.items():
            if name not in _FOREIGN:
                yield from _mappings(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _mappings(item)
