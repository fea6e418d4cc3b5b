"""The models of an endpoint: pure language models by their name, and agents with tools and a directory of their own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

from pilothouse.client import Agent, Query
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta, ToolCallStarted
from pilothouse.messages import ResultMessage
from pilothouse.options import Options
from pilothouse_access.on_behalf import ConfinedTransports
from pilothouse_access.owners import ShareLimiter
from pilothouse_models import (
    AnswerFailed,
    AnswerFinished,
    GenerateResult,
    LanguageModel,
    ModelEvent,
    ModelStep,
    ResponseInfo,
    Stream,
    TokenUsage,
)
from pilothouse_models.endpoints.exchange import MAX_ATTEMPTS, EndpointError, EndpointRequest, make_invalid
from pilothouse_models.json_text import json_text
from pilothouse_models.model import MODEL_ALIASES, check_model
from pilothouse_models.request import MessageConverter
from pilothouse_models.stream import FINISH_REASONS
from pilothouse_models.xml import derive_nonce, encode_turns, read_conversation

AGENT_PREFIX: Final = "agent:"
LISTED_MODELS: Final = ("opus", "sonnet", "haiku")
DEFAULT_MAX_REQUESTS: Final = 8
_ONE_CALL: Final = "Call one tool at most in an answer."


class EndpointModels:
    """The models that endpoints offer. Give the same object to `openai_routes` and `anthropic_routes`.

    Aliases (`sonnet`, `opus`, `haiku` …) and full ids (`claude-…`) are pure models: `LanguageModel`. `agent:NAME` is
    Claude Code with its own tools, in its own directory.

    Args:
        options: settings of the pure models.
        agents: agents by name. Their tools run on this machine, for every client of the endpoint. They load the
            settings of the user alone, unless they have the option `setting_sources`.
        aliases: further names of models, such as `{"gpt-4o": "sonnet"}`.
        max_requests: how many are answered at once; others wait, those of each owner by its share. Default 8: each has
            a process of its own.
        **settings: settings that override `options`, such as `transport=Pool(booted=True)`.

    Raises:
        UsageError: a setting is not valid, or an alias leads to no model.
    """

    def __init__(
        self,
        *,
        options: Options | None = None,
        agents: Mapping[str, Agent] | None = None,
        aliases: Mapping[str, str] | None = None,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        **settings: Any,
    ) -> None:
        confined: dict[str, Any] = {**settings, "transport": ConfinedTransports(Agent(options, **settings))}
        self._model = LanguageModel(options=options, **confined)
        self._agents = dict(agents or {})
        self._aliases = dict(aliases or {})
        if max_requests < 1:
            raise UsageError(f"max_requests: expected a number above 0, got {max_requests}")
        self.limiter = ShareLimiter(max_requests)
        self.offered_since = int(time.time())
        for alias, name in self._aliases.items():
            if not self._is_known(name):
                raise UsageError(f"the alias {alias!r} leads to {name!r}, and there is no such model")

    @property
    def names(self) -> list[str]:
        """The names that are listed; other aliases of the CLI and full ids work, too."""
        return [*LISTED_MODELS, *self._aliases, *(AGENT_PREFIX + name for name in self._agents)]

    def check(self, name: str) -> str:
        """Return the model that a name leads to; raises EndpointError (404)."""
        found = self._aliases.get(name, name)
        if not self._is_known(found):
            text = f"there is no model {name!r}; there are {', '.join(self.names)}, and the full ids claude-…"
            raise EndpointError(404, "not_found_error", text, code="model_not_found")
        return found

    def start(self, request: EndpointRequest, *, resume: str | None = None) -> Stream | AgentStream:
        """Start to answer a request; an agent continues the session `resume`. Raises EndpointError, UsageError."""
        name = self.check(request.model)
        if name.startswith(AGENT_PREFIX):
            return _start_agent(self._agents[name.removeprefix(AGENT_PREFIX)], request, resume)
        messages = request.messages
        if request.one_call and request.tools:
            messages = [{"role": "system", "content": _ONE_CALL}, *messages]
        settings: dict[str, Any] = {**request.settings, "model": name}
        if request.json_schema is not None:
            settings["json_schema"] = request.json_schema
        return self._model.stream(
            messages, request.tools, tool_choice=request.tool_choice, max_steps=MAX_ATTEMPTS, **settings
        )

    def is_agent(self, name: str) -> bool:
        """Whether a name leads to an agent."""
        return self._aliases.get(name, name).startswith(AGENT_PREFIX)

    def _is_known(self, name: str) -> bool:
        if name.startswith(AGENT_PREFIX):
            return name.removeprefix(AGENT_PREFIX) in self._agents
        if name in MODEL_ALIASES:
            return True
        try:
            check_model(name)
        except UsageError:
            return False
        return True


def _start_agent(agent: Agent, request: EndpointRequest, resume: str | None) -> AgentStream:
    if request.tools:
        raise make_invalid("tools", "an agent runs its own tools; the pure models call those of the client")
    converter = MessageConverter()
    conversation = read_conversation(converter.convert(request.messages))
    settings: dict[str, Any] = {**request.settings, "transport": ConfinedTransports(agent)}
    if "verbatim_prompts" not in agent.options:
        settings["verbatim_prompts"] = True
    if conversation.system:
        own = agent.options.append_system_prompt
        settings["append_system_prompt"] = "\n\n".join(filter(None, [own, conversation.system]))
    if request.json_schema is not None:
        settings["json_schema"] = request.json_schema
    if resume is not None:
        settings |= {"resume": resume, "fork_session": True}  # an answer can be continued more than once
    content: Any = encode_turns(conversation.turns, derive_nonce(conversation.system or ""))
    return AgentStream(agent.query(content, **settings), is_structured=request.json_schema is not None)


class AgentStream:
    """The events of an agent's answer, in the form of a `LanguageModel`'s; its own tool calls are not part of them.

    If `is_structured`, the text of the answer is its structured output.
    """

    def __init__(self, query: Query[Any], *, is_structured: bool) -> None:
        self._query = query
        self._is_structured = is_structured

    async def __aenter__(self) -> Self:
        return self  # nothing is started before the first event is wanted

    async def __aexit__(self, *_: object) -> None:
        await self._query.aclose()

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        text, thinking, had_calls = "", "", False
        try:
            async for event in self._query.events():
                match event:
                    case TextDelta(agent=None, text=more) if not self._is_structured:
                        if had_calls and text and not (text[-1].isspace() or more[:1].isspace()):
                            more = f"\n\n{more}"
                        text, had_calls = text + more, False
                        yield TextDelta(more)
                    case TextRetracted(agent=None, text=less) if not self._is_structured:
                        text = text.removesuffix(less)
                        yield event
                    case ThinkingDelta(agent=None):
                        thinking += event.text
                        yield event
                    case ToolCallStarted(agent=None):
                        had_calls = True
                    case _:
                        pass
            answer = await self._query.result()
            answer.raise_for_error()
        except PilothouseError as error:
            yield AnswerFailed(error, GenerateResult(finish_reason="error"))
            return
        if self._is_structured:
            text = json_text(answer.structured)
            yield TextDelta(text)
        result = _make_result(text, thinking, answer.result)
        yield AnswerFinished(result.finish_reason, result.usage, result)


def _make_result(text: str, thinking: str, closing: ResultMessage | None) -> GenerateResult:
    assert closing is not None  # or the answer had an error
    reason = FINISH_REASONS.get(closing.stop_reason or "", "stop")
    usage = TokenUsage.from_usage(closing.usage)
    step = ModelStep(text=text, reasoning=thinking, finish_reason=reason, stop_reason=closing.stop_reason, usage=usage)
    response = ResponseInfo(session_id=closing.session_id, cost_usd=closing.total_cost_usd)
    return GenerateResult(steps=(step,), finish_reason=reason, response=response)
