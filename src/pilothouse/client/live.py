"""Settings of one query of a session: changed in the child that runs, or given to a child of the query's own.

Owns the tables of what can be changed where, and what a child has in effect. When a query begins and ends, the session
knows; how one child takes over from another, `children`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilothouse.client.given_tools import are_same_tools, with_tools_made
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
# What a child is started with, although the CLI has no option for it.
CHILD_SETTINGS = frozenset(
    {"cwd", "env", "extra_args", "inherit_env", "max_line_bytes", "stderr", "control_timeout", "wait_for_mcp"}
    | {"can_use_tool", "confirm", "on_question", "on_plan", "hooks", "on_elicitation", "on_user_dialog"}
    | {"custom_tools", "tool_bridge"}
)
_OTHER_CONVERSATION = "it says which conversation goes on; make another session with it, or use session.fork()"
_SAME_PLACE = "every child of a session must find the conversation in the same place; make another session with it"
_SAME_WAY = "every child of a session is reached in the same way; make another session with it"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("resume", "continue_conversation", "fork_session", "session_id"), _OTHER_CONVERSATION),
    **dict.fromkeys(("resume_session_at", "resume_drops_turn"), _OTHER_CONVERSATION),
    **dict.fromkeys(("session_store", "session_store_flush", "session_lease", "load_timeout"), _SAME_PLACE),
    **dict.fromkeys(("persist_session", "isolation", "config_dir", "user"), _SAME_PLACE),
    **dict.fromkeys(("cli", "transport", "prompt_via"), _SAME_WAY),
    "restart": "it is about all children of a session; make another session with it",
    "title": "the conversation has one title; call session.rename(…)",
}
"""Settings that no query of a session can have for itself, and why."""
_MODES: dict[Any, str] = {"manual": "default"}  # two names of one
UNKNOWN = object()
"""A request was sent and not answered: the child may have the old value, or the new one."""


def split_settings(call: Options, session: Options) -> tuple[dict[str, Any], Options]:
    """What a query of a session sets for itself: what is changed in the child that runs, and what needs another child.

    Args:
        call: the settings of the query.
        session: those of the session; what is the same in both is in neither part.

    Raises:
        OptionsError: one of them cannot differ for one query.
        ToolDefinitionError: a function that cannot be a tool.
    """
    given, usual = call.as_dict(), session.as_dict()
    changes = {name: value for name, value in given.items() if name in LIVE}
    for name in [name for name, value in given.items() if not _needs_child(name, value, usual.get(name))]:
        del given[name]
    for name, value in given.items():
        if name in REFUSED:
            raise OptionsError(
                f"option {name!r} cannot be set for one query of a session, got {TABLE[name].show(value)}: "
                f"{REFUSED[name]}",
                option=name,
            )
    thinks = "max_thinking_tokens" in changes and "thinking" not in given
    if thinks and session.thinking is not None:
        raise OptionsError(
            "option 'max_thinking_tokens' cannot change in a session that was made with 'thinking', which wins over it",
            option="max_thinking_tokens",
        )
    return changes, with_tools_made(Options.layer(**given))


def _needs_child(name: str, value: Any, usual: Any) -> bool:
    if name in LIVE or name == "partial_messages" or value == usual:
        return False
    if name == "custom_tools" and are_same_tools(value, usual):
        return False
    return name in REFUSED or name in CHILD_SETTINGS or not isinstance(TABLE[name].target, Sdk)


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
