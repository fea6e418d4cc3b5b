"""How calls of `custom_tools` reach this process: which bridge the settings ask for, and what it needs.

Owns the choice of the bridge and the flags it changes. Loaded only where one other than `mcp` is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from pilothouse.client.given_tools import TOOL_SERVER, allowed_with, log_failure
from pilothouse.client.lineage import NO_SNAPSHOT
from pilothouse.client.prompt import prepare
from pilothouse.client.prompt_queue import PromptQueue
from pilothouse.driver import Continuation, Next, Outgoing, Prompts
from pilothouse.errors import OptionsError
from pilothouse.messages import ResultMessage
from pilothouse.options import Options
from pilothouse.tools import sdk_server
from pilothouse.tools.bridges import DeferredBridge, Rules, Steps, ToolHost, XmlBridge

Bridge: TypeAlias = DeferredBridge | XmlBridge


def make_bridge(options: Options) -> Bridge:
    """The bridge that `options` ask for, which is not `mcp`.

    Raises:
        OptionsError: an option that does not go together with it.
        ToolDefinitionError: a tool that cannot work.
    """
    rules = Rules(allowed_with(options), options.disallowed_tools or ())
    host = ToolHost(TOOL_SERVER, sdk_server(TOOL_SERVER, options.custom_tools or ()).tools, rules, log_failure)
    host.mode = options.permission_mode
    if options.tool_bridge == "deferred":
        if options.bare:
            raise OptionsError(
                "options 'bare' and tool_bridge='deferred' exclude each other: a bare CLI calls no hooks", option="bare"
            )
        return DeferredBridge(host, options.max_turns)
    for name, value in (("tools", options.tools), ("mcp_servers", options.mcp_servers)):
        if value:
            raise OptionsError(
                f"options {name!r} and tool_bridge='xml' exclude each other: it works without MCP and without the "
                "tools of the CLI",
                option=name,
            )
    if options.json_schema is not None:
        raise OptionsError(
            "tool_bridge='xml' and structured output exclude each other: the CLI asks for the output before the calls "
            "in an answer are run",
            option="tool_bridge",
        )
    return XmlBridge(host, options.max_turns)


def bridge_changes(bridge: Bridge, options: Options) -> dict[str, Any]:
    """The options that a bridge needs; for `xml` its rules in the system prompt, and no other tools. (S1, S21)"""
    if not isinstance(bridge, XmlBridge):
        return {}
    own = bridge.system_prompt()
    changes: dict[str, Any] = {
        "tools": [],
        "strict_mcp_config": True,
        "extra_args": {**NO_SNAPSHOT, **(options.extra_args or {})},
    }
    preset: Any = options.system_prompt
    if getattr(preset, "append", None) is not None:
        return changes | {"system_prompt": replace(preset, append=f"{preset.append}\n\n{own}")}
    before = f"{options.append_system_prompt}\n\n" if options.append_system_prompt else ""
    return changes | {"append_system_prompt": before + own}


def with_deferral(hooks: Any, bridge: Bridge) -> Any:
    """`hooks`, and the one that leaves the calls of the bridge `deferred` to this process."""
    if not isinstance(bridge, DeferredBridge):
        return hooks
    from pilothouse.hooks import HookMatcher

    given: Mapping[str, Any] = hooks or {}
    before: Any = given.get("PreToolUse", ())
    listed = cast("list[Any]", [*before] if isinstance(before, list | tuple) else [before])
    return {**given, "PreToolUse": [*listed, HookMatcher(bridge.matcher, bridge.defer)]}


class Bridged:
    """Goes on with what the tools of this process give; a continuation.

    Args:
        steps: those of the query.
        prompts: of the query. The next one waits until no call of the answer to the one before is left: the CLI would
            answer it instead of taking the results.
        after: what goes on once no call is left.

    Attributes:
        first: what may be said at once.
    """

    def __init__(self, steps: Steps, prompts: Prompts = (), after: Continuation | None = None) -> None:
        self.read = steps.read
        self._steps = steps
        self._prompts = PromptQueue(prompts)
        self._after = after
        self.first = self._prompts.first

    async def go_on(self, result: ResultMessage) -> Next:
        """The results of the calls that `result` leaves to this process."""
        step = await self._steps.go_on(result)
        if step.content is not None:
            # Verbatim: an `@path` or a `/command` in a result is neither. (S23)
            [prompt] = cast("tuple[Outgoing]", prepare(step.content, verbatim=True))
            return Next(prompt, step.messages)
        if step.messages:
            return Next(None, step.messages)
        following = Next() if self._after is None else await self._after.go_on(result)
        if following.prompt is not None or following.messages:
            return following
        return Next(await self._prompts.next())
