"""The tool bridges `deferred` and `xml`: calls of `custom_tools` run here after the turn of the CLI.

Owns the options and hooks that they need, and the middlewares that run the calls and send the next prompt. How a call
runs is in `tools.bridges`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from pilothouse.client import Middleware, NextPrompt, PromptMessage, Prompts, ToolBridge
from pilothouse.errors import OptionsError
from pilothouse.hooks import HookMatcher
from pilothouse.messages import Message, ResultMessage
from pilothouse.options import Options
from pilothouse.permissions import RuleSet
from pilothouse.tools import sdk_server
from pilothouse_models.bridges import DeferredBridge, ToolExecutor, ToolLoop, XmlBridge


class LoopBridge(ToolBridge):
    """A bridge whose calls run after the turn of the CLI, in a loop: their results are the next prompt."""

    @abstractmethod
    def start_loop(self) -> ToolLoop:
        """Start the tool loop of a query."""

    def make_middlewares(self) -> tuple[Middleware, Middleware]:
        """Make the queue of the prompts, and what runs the calls."""
        return PromptQueue(), BridgeMiddleware(self)


class DeferredTools(DeferredBridge, LoopBridge):
    """The bridge `deferred`: MCP declares the tools, and a hook leaves their calls to this process."""

    def add_hooks(self, hooks: Any) -> Any:
        """Return `hooks` with the hook that defers the calls."""
        given: Mapping[str, Any] = hooks or {}
        before: Any = given.get("PreToolUse", ())
        listed = cast("list[Any]", [*before] if isinstance(before, list | tuple) else [before])
        return {**given, "PreToolUse": [*listed, HookMatcher(self.matcher, self.defer)]}


class XmlTools(XmlBridge, LoopBridge):
    """The bridge `xml`: calls and results are text."""

    def make_options(self, options: Options) -> dict[str, Any]:
        """Return the options that explain the protocol in the system prompt, and leave no other tools."""
        own = self.system_prompt()
        changes: dict[str, Any] = {
            "tools": [],
            "strict_mcp_config": True,
            "extra_args": {"system-prompt-snapshot": "off", **(options.extra_args or {})},
        }
        preset: Any = options.system_prompt
        if getattr(preset, "append", None) is not None:
            return changes | {"system_prompt": replace(preset, append=f"{preset.append}\n\n{own}")}
        before = f"{options.append_system_prompt}\n\n" if options.append_system_prompt else ""
        return changes | {"append_system_prompt": before + own}


def make_deferred(options: Options) -> DeferredTools:
    """Make the bridge `deferred`.

    Raises:
        OptionsError: an option that cannot be combined with it.
        ToolDefinitionError: a tool that cannot work.
    """
    executor = _make_executor(options)
    if options.bare:
        raise OptionsError(
            "options 'bare' and tool_bridge='deferred' cannot be combined: a bare CLI calls no hooks", option="bare"
        )
    return DeferredTools(executor, options.max_turns)


def make_xml(options: Options) -> XmlTools:
    """Make the bridge `xml`.

    Raises:
        OptionsError: an option that cannot be combined with it.
        ToolDefinitionError: a tool that cannot work.
    """
    executor = _make_executor(options)
    for name, value in (("tools", options.tools), ("mcp_servers", options.mcp_servers)):
        if value:
            raise OptionsError(
                f"options {name!r} and tool_bridge='xml' cannot be combined: it works without MCP and without the "
                "tools of the CLI",
                option=name,
            )
    if options.json_schema is not None:
        raise OptionsError(
            "tool_bridge='xml' and structured output cannot be combined: the CLI requests the output before it "
            "runs the calls of an answer",
            option="tool_bridge",
        )
    return XmlTools(executor, options.max_turns)


def _make_executor(options: Options) -> ToolExecutor:
    rules = RuleSet.parse(allow=ToolBridge.list_allowed_tools(options), deny=options.disallowed_tools or ())
    tools = sdk_server(ToolBridge.TOOL_SERVER, options.custom_tools or ()).tools
    prepare = partial(ToolBridge.wrap_callbacks, options)
    executor = ToolExecutor(ToolBridge.TOOL_SERVER, tools, rules, ToolBridge.log_failure, prepare)
    executor.permission_mode = options.permission_mode
    return executor


class BridgeMiddleware(Middleware):
    """Runs the tool calls that a result leaves to this process and sends the results.

    Args:
        bridge: of the query; its tool loop starts with the run.
    """

    def __init__(self, bridge: LoopBridge) -> None:
        self._bridge = bridge
        self._steps: ToolLoop | None = None

    def on_start(self, run: object) -> None:
        """Start the tool loop."""
        self._steps = self._bridge.start_loop()

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Read the calls in the messages, and take them out of the text."""
        assert self._steps is not None
        return self._steps.read(batch)

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Return the results of the calls that `result` leaves to this process."""
        assert self._steps is not None
        step = await self._steps.next_step(result)
        if step.content is not None:
            return self.make_next_prompt(step.content, step.messages)
        return NextPrompt(None, step.messages) if step.messages else None


class PromptQueue(Middleware):
    """Holds back all prompts but the first, and sends one after each result.

    For tool bridges: the CLI would answer the next prompt instead of taking the results of calls.
    """

    def __init__(self) -> None:
        self._remaining: Iterator[PromptMessage] | None = None
        self._stream: AsyncGenerator[PromptMessage, None] | None = None

    def prepare_prompts(self, prompts: Prompts) -> Prompts:
        """Return the first prompt."""
        if isinstance(prompts, Sequence):
            self._remaining = iter(prompts[1:])
            return prompts[:1]
        self._stream = prompts
        return self._only_first(prompts)

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Return the next prompt, once it is there."""
        if self._stream is not None:
            prompt = await anext(self._stream, None)
        else:
            prompt = None if self._remaining is None else next(self._remaining, None)
        return None if prompt is None else NextPrompt(prompt)

    @staticmethod
    async def _only_first(prompts: AsyncGenerator[PromptMessage, None]) -> AsyncGenerator[PromptMessage, None]:
        prompt = await anext(prompts, None)
        if prompt is not None:
            yield prompt
