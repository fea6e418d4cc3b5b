"""Prompts that are commands: `/clear` and `/compact`. All other text goes to the model as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pilothouse.native import frames
from pilothouse.native.api import ApiError
from pilothouse.native.asking import Connect
from pilothouse.native.compacting import compact
from pilothouse.native.failures import told
from pilothouse.native.shapes import JSON
from pilothouse.native.state import State
from pilothouse.native.wire import HostGoneError

NAMES: Final = frozenset({"clear", "compact"})


def command_in(state: State, text: str, frame: Mapping[str, Any]) -> tuple[str, str] | None:
    """The command that a prompt is, and its arguments."""
    if not text.startswith("/") or frame.get("client_composed") or not state.launch.commands:
        return None
    name, _, arguments = text[1:].strip().partition(" ")
    return (name, arguments.strip()) if name in NAMES else None


async def carry_out(state: State, connect: Connect, name: str, arguments: str, user_uuid: str | None) -> JSON:
    """Carry out a command; gives what the result says."""
    await state.servers.wait()
    await state.wire.say(frames.init(state))
    if name == "clear":
        return await _clear(state, user_uuid)
    if not state.history.messages:
        return _result("compact", "There is nothing to compact yet.")
    try:
        before = await compact(state, connect, "manual", arguments)
    except ApiError as error:
        return _result("compact", f"Error during compaction: {told(error).text}", is_error=True)
    return _result("compact", "Compacted" if before >= 0 else "Compaction was blocked by a hook.")


async def _clear(state: State, user_uuid: str | None) -> JSON:
    new = state.begin_anew()
    reset = {"type": "conversation_reset", "new_conversation_id": new, "trigger": "clear"}
    await state.wire.say(reset | ({"user_message_uuid": user_uuid} if user_uuid else {}))
    try:
        about = state.about() | {"source": "clear", "model": state.model}
        verdict = await state.hooks.fire("SessionStart", about, subject="clear")
    except HostGoneError:
        return _result("clear", "")
    if verdict.contexts:
        state.history.user("\n".join(verdict.contexts))
    return _result("clear", "")


def _result(command: str, text: str, *, is_error: bool = False) -> JSON:
    about = {"subtype": "success", "is_error": is_error, "result": text, "local_command": command}
    return about | {"terminal_reason": "api_error" if is_error else "completed", "api_error_status": None}
