"""What a query may change while the child of a session runs: set before it, set back after it.

Owns the table of these settings, and what the child has in effect. When a query begins and ends, the session knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilothouse.client.given_tools import are_same_tools
from pilothouse.driver.conversation import Conversation
from pilothouse.errors import CLIExitedError, ControlError, ControlTimeout, OptionsError
from pilothouse.options import TABLE, Options
from pilothouse.options.targets import Sdk

# The control request, and the key of its body.
LIVE = {
    "model": ("set_model", "model"),
    "permission_mode": ("set_permission_mode", "mode"),
    "max_thinking_tokens": ("set_max_thinking_tokens", "max_thinking_tokens"),
}
# What decides how the child is started or reached, or what it may ask, although the CLI does not see it.
FIXED_OURS = frozenset(
    {"cli", "cwd", "env", "extra_args", "inherit_env", "max_line_bytes", "persist_session", "prompt_via", "restart"}
    | {"stderr", "transport", "user", "control_timeout", "can_use_tool", "confirm", "on_question", "on_plan", "hooks"}
    | {"isolation", "on_elicitation", "on_user_dialog", "custom_tools", "tool_bridge", "wait_for_mcp"}
    | {"max_budget_tokens", "session_store", "session_store_flush", "load_timeout", "session_lease"}
)
_MODES: dict[Any, str] = {"manual": "default"}  # two names of one
UNKNOWN = object()
"""A request was sent and not answered: the child may have the old value, or the new one."""


def changes_of(call: Options, session: Options) -> dict[str, Any]:
    """The settings that have to be changed for a query with the settings `call` of its own. (E39)

    Raises:
        OptionsError: one of them cannot change in a session.
    """
    given = call.as_dict()
    for name, value in given.items():
        is_ours = isinstance(TABLE[name].target, Sdk) and name not in FIXED_OURS
        if is_ours or name in LIVE or name == "partial_messages" or value == session.as_dict().get(name):
            continue
        if name == "custom_tools" and are_same_tools(value, session.custom_tools):
            continue
        raise OptionsError(
            f"option {name!r} is fixed while a session runs; give it to session(…), or make a fork with it", option=name
        )
    if "max_thinking_tokens" in given and session.thinking is not None:
        raise OptionsError(
            "option 'max_thinking_tokens' cannot change in a session that was made with 'thinking', which wins over it",
            option="max_thinking_tokens",
        )
    return {name: value for name, value in given.items() if name in LIVE}


class LiveSettings:
    """The settings in `LIVE` that one child has in effect.

    Args:
        options: what it was started with.
        child: sends control requests; knows the permission mode, which the CLI also changes by itself.
    """

    def __init__(self, options: Options, child: Conversation) -> None:
        self._child = child
        self._default_mode = child.permission_mode or "default"
        self._in_effect = self._wanted(options)

    async def have(self, options: Options, changes: Mapping[str, Any]) -> None:
        """Make the child have the values of `options`, in place of what was set here, and `changes` for certain.

        Raises:
            ControlError, ControlTimeout: the CLI refused, or did not answer; then it was ended.
        """
        for name, value in self._wanted(options, changes).items():
            is_so = self._in_effect[name] == value
            if name in changes and name == "permission_mode":
                is_so = self._child.permission_mode in (value, None) and is_so
            if is_so:
                continue
            try:
                await self.set(name, value)
            except ControlTimeout as error:  # a child that is deaf now would fail every later query in the same way
                self._child.stop(CLIExitedError(f"the CLI was ended: {error}"))
                raise

    async def set(self, name: str, value: Any) -> Mapping[str, Any]:
        """Change one, whatever it is now; gives the answer."""
        subtype, key = LIVE[name]
        before, self._in_effect[name] = self._in_effect[name], UNKNOWN
        try:
            answer = await self._child.request(subtype, {key: value})
        except ControlError:
            self._in_effect[name] = before
            raise
        self._in_effect[name] = value
        if name == "permission_mode":
            self._child.permission_mode = value
        return answer

    def _wanted(self, options: Options, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        values = {name: options.as_dict().get(name) for name in LIVE} | dict(changes or {})
        mode = values["permission_mode"]
        return values | {"permission_mode": _MODES.get(mode, mode) or self._default_mode}
