"""What a query may change while the child of a session runs: set before it, set back after it.

Owns the table of these settings, and what the child has in effect. How a request travels, the caller knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pilothouse.errors import ControlError, OptionsError
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
    | {"on_elicitation", "on_user_dialog", "custom_tools"}
)
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
        permission_mode: what it said that it started in.
        ask: sends a control request.
    """

    def __init__(
        self,
        options: Options,
        permission_mode: object,
        ask: Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self._ask = ask
        self._default_mode = permission_mode if isinstance(permission_mode, str) else "default"
        self._in_effect = {name: self._wire(name, options.as_dict().get(name)) for name in LIVE}

    async def have(self, options: Options) -> None:
        """Make the child have the values of `options`; asks only for what differs.

        Raises:
            ControlError, ControlTimeout: the CLI refused, or did not answer.
        """
        wanted = {name: self._wire(name, options.as_dict().get(name)) for name in LIVE}
        for name, value in wanted.items():
            if self._in_effect[name] != value:
                await self.set(name, value)

    async def set(self, name: str, value: Any) -> Mapping[str, Any]:
        """Change one, whatever it is now; gives the answer."""
        subtype, key = LIVE[name]
        before, self._in_effect[name] = self._in_effect[name], UNKNOWN
        try:
            answer = await self._ask(subtype, {key: value})
        except ControlError:
            self._in_effect[name] = before
            raise
        self._in_effect[name] = value
        return answer

    def _wire(self, name: str, value: Any) -> Any:
        return self._default_mode if value is None and name == "permission_mode" else value
