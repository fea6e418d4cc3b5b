"""`PilothouseModel`: Claude Code as a model of pydantic-ai. Extra `[pydantic-ai]`.

Owns the translation between the messages of pydantic-ai and `LanguageModel`; the tools of an agent run in pydantic-ai.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

try:
    import pydantic_ai as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "PilothouseModel needs pydantic_ai; install it with: pip install 'pilothouse[pydantic-ai]'", name="pydantic_ai"
    ) from missing

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage

from pilothouse.errors import PilothouseError
from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta
from pilothouse_models import AnswerFailed, AnswerFinished, GenerateResult, LanguageModel, ModelEvent
from pilothouse_models.endpoints.exchange import EFFORTS, MAX_ATTEMPTS, make_endpoint_error
from pilothouse_models.model import DEFAULT_MODEL

_SYSTEM: Final = "pilothouse"
_PROFILE: Final = ModelProfile(
    supports_tools=True,
    supports_json_schema_output=True,
    supports_json_object_output=True,
    supports_thinking=True,
)
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "content-filter": "content_filter",
    "tool-calls": "tool_call",
    "error": "error",
}


class PilothouseModel(Model[Any]):
    """Claude Code as a model of pydantic-ai: tools, typed output, streams, message history and usage.

    ::

        from pydantic_ai import Agent
        from pilothouse_models.pydantic_ai import PilothouseModel

        agent = Agent(PilothouseModel("opus"), output_type=City)

    Args:
        model: an alias ("sonnet", "opus" …) or a full id (`claude-…`). Default "sonnet".
        settings: settings of pydantic-ai for each request, such as `max_tokens`.
        profile: what pydantic-ai should know about the model.
        **options: settings of `pilothouse.Options`, such as `cli`, `env`, `transport`.

    Raises:
        UsageError: the model or an option is not valid.
    """

    _unsupported_file_inputs = frozenset({"audio", "video"})
    unsupported_settings = frozenset(
        {
            "extra_body", "extra_headers", "frequency_penalty", "logit_bias", "max_retries", "parallel_tool_calls",
            "presence_penalty", "seed", "service_tier", "stop_sequences", "temperature", "top_k", "top_p",
        }
    )  # fmt: skip

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        settings: ModelSettings | None = None,
        profile: ModelProfile | None = None,
        **options: Any,
    ) -> None:
        self._language_model = LanguageModel(model, **options)
        super().__init__(settings=settings, profile=profile or _PROFILE)

    @property
    def provider(self) -> None:
        """There is none: the login or key of Claude Code is used."""
        return

    @property
    def model_name(self) -> str:
        """The alias or id of the model."""
        return self._language_model.model

    @property
    def system(self) -> str:
        """The name of this integration."""
        return _SYSTEM

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request and return the whole answer.

        Raises:
            ModelHTTPError: the API failed.
            ModelAPIError: Claude Code failed otherwise.
        """
        given, request = self._make_request(messages, model_settings, model_request_parameters)
        try:
            result = await self._language_model.generate(given, **request)
        except PilothouseError as error:
            raise _convert_error(self.model_name, error) from error
        return ModelResponse(
            parts=_make_parts(result),
            usage=_make_usage(result),
            model_name=result.response.model or self.model_name,
            provider_name=_SYSTEM,
            provider_response_id=result.response.message_id,
            provider_details=_make_details(result),
            finish_reason=_FINISH_REASONS.get(result.finish_reason),
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Send a request and stream the answer; leaving the block ends its process. Raises as `request` does."""
        given, request = self._make_request(messages, model_settings, model_request_parameters)
        async with self._language_model.stream(given, **request) as stream:
            events = aiter(stream)
            first = await anext(events)
            if isinstance(first, AnswerFailed):
                raise _convert_error(self.model_name, first.error) from first.error
            yield PilothouseStreamedResponse(model_request_parameters, self.model_name, first, events)

    def _make_request(
        self, messages: Sequence[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        settings, parameters = self.prepare_request(settings, parameters)
        chosen = settings or ModelSettings()
        request: dict[str, Any] = {"max_steps": MAX_ATTEMPTS}
        request["tools"], request["tool_choice"] = _choose_tools(chosen, parameters)
        if parameters.output_mode == "native" and parameters.output_object is not None:
            request["json_schema"] = parameters.output_object.json_schema
        if (limit := chosen.get("max_tokens")) is not None:
            request["max_output_tokens"] = limit
        timeout: Any = chosen.get("timeout")
        if isinstance(timeout, int | float):
            request["timeout"] = timeout
        if parameters.thinking in EFFORTS:
            request["effort"] = parameters.thinking
        instructions = _find_instructions(messages, parameters)
        system = [{"role": "system", "content": instructions}] if instructions else []
        return [*system, *_convert_messages(messages)], request


@dataclass
class PilothouseStreamedResponse(StreamedResponse):
    """A streamed answer, as pydantic-ai reads it."""

    _model_name: str
    _first: ModelEvent
    _events: AsyncIterator[ModelEvent]
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for part in self._read(self._first):
            yield part
        async for event in self._events:
            for part in self._read(event):
                yield part

    def _read(self, event: ModelEvent) -> Iterator[ModelResponseStreamEvent]:
        match event:
            case TextDelta():
                yield from self._parts_manager.handle_text_delta(vendor_part_id="text", content=event.text)
            case ThinkingDelta():
                yield from self._parts_manager.handle_thinking_delta(vendor_part_id="thinking", content=event.text)
            case TextRetracted(text=text) if text:
                raise ModelAPIError(self._model_name, "the answer broke off; send the request again", in_stream=True)
            case AnswerFailed():
                raise _convert_error(self._model_name, event.error) from event.error
            case AnswerFinished():
                yield from self._finish(event.result)
            case _:
                pass

    def _finish(self, result: GenerateResult) -> Iterator[ModelResponseStreamEvent]:
        for call in result.pending_calls:
            yield self._parts_manager.handle_tool_call_part(
                vendor_part_id=call.id, tool_name=call.name, args=call.input, tool_call_id=call.id
            )
        self._usage = _make_usage(result)
        self.finish_reason = _FINISH_REASONS.get(result.finish_reason)
        self.provider_response_id = result.response.message_id
        self.provider_details = _make_details(result)

    @property
    def model_name(self) -> str:
        """The alias or id of the model."""
        return self._model_name

    @property
    def provider_name(self) -> str:
        """The name of this integration."""
        return _SYSTEM

    @property
    def provider_url(self) -> None:
        """There is none."""
        return

    @property
    def timestamp(self) -> datetime:
        """When the answer began."""
        return self._timestamp


def _convert_error(model: str, error: Exception) -> ModelAPIError:
    """Convert an error, so that fallbacks of pydantic-ai know it."""
    known = make_endpoint_error(error)
    if known is None:
        return ModelAPIError(model, str(error))
    body = {"type": known.kind, "message": known.message}
    return ModelHTTPError(known.status, model, body, retry_after=known.retry_after)


def _choose_tools(settings: ModelSettings, parameters: ModelRequestParameters) -> tuple[list[dict[str, Any]], Any]:
    """Return the tools that are declared, and the choice among them."""
    functions, outputs = list(parameters.declared_function_tools), list(parameters.output_tools)
    choice = settings.get("tool_choice")
    free = "auto" if parameters.allow_text_output or not outputs else "required"
    if isinstance(choice, ToolOrOutput):
        functions = [tool for tool in functions if tool.name in choice.function_tools]
    elif choice == "none" or choice == []:
        functions = []
    elif choice == "required":
        free = "required"
    elif isinstance(choice, list):
        functions = [tool for tool in functions if tool.name in choice]
        outputs = [tool for tool in outputs if tool.name in choice]
        free = "required"
    declared = [_declare(tool) for tool in [*functions, *outputs]]
    return declared, free if declared else "none"


def _declare(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description or "", "input_schema": tool.parameters_json_schema}


def _find_instructions(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> str | None:
    if parameters.instruction_parts:
        return "\n\n".join(part.content for part in parameters.instruction_parts)
    found = (each.instructions for each in reversed(messages) if isinstance(each, ModelRequest) and each.instructions)
    return next(found, None)


def _convert_messages(messages: Sequence[ModelMessage]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message, ModelResponse):
            content = [part for each in message.parts for part in _convert_response_part(each)]
            if content:
                yield {"role": "assistant", "content": content}
            continue
        for part in message.parts:
            match part:
                case SystemPromptPart():
                    yield {"role": "system", "content": part.content}
                case UserPromptPart(content=content):
                    items = [content] if isinstance(content, str) else content
                    yield {"role": "user", "content": [made for item in items for made in _convert_item(item)]}
                case ToolReturnPart():
                    items = part.content_items(mode="str", wrap_if_error=False)
                    result = [made for item in items for made in _convert_item(item)]
                    failed = {"is_error": True} if part.outcome != "success" else {}
                    named = {"tool_call_id": part.tool_call_id, "name": part.tool_name}
                    yield {"role": "tool", **named, "content": result, **failed}
                case _:
                    raise UserError(f"a part of type {part.part_kind!r} is unknown to PilothouseModel")


def _convert_response_part(part: ModelResponsePart) -> list[dict[str, Any]]:
    match part:
        case TextPart():
            return [{"type": "text", "text": part.content}] if part.content else []
        case ThinkingPart():
            return [{"type": "thinking", "thinking": part.content}] if part.content else []
        case ToolCallPart():
            arguments = part.args_as_dict()
            return [{"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": arguments}]
        case _:
            return []  # of other providers


def _convert_item(item: Any) -> list[dict[str, Any]]:
    if isinstance(item, str):
        return [{"type": "text", "text": item}] if item else []
    if isinstance(item, CachePoint):
        return []
    if isinstance(item, BinaryContent):
        return [{"type": "file", "data": item.data, "media_type": item.media_type}]
    if isinstance(item, UploadedFile):
        raise UserError("PilothouseModel keeps no uploaded files: give the file as BinaryContent")
    if (url := getattr(item, "url", None)) is not None:
        return [{"type": "file", "data": url, "media_type": item.media_type}]
    return [{"type": "text", "text": str(item.content)}]


def _make_parts(result: GenerateResult) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = []
    if result.reasoning:
        parts.append(ThinkingPart(result.reasoning))
    if result.text:
        parts.append(TextPart(result.text))
    return [*parts, *(ToolCallPart(call.name, call.input, call.id) for call in result.pending_calls)]


def _make_usage(result: GenerateResult) -> RequestUsage:
    usage = result.usage
    return RequestUsage(
        input_tokens=usage.input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        details={"reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else {},
    )


def _make_details(result: GenerateResult) -> dict[str, Any]:
    stop = result.steps[-1].stop_reason if result.steps else None
    return {"finish_reason": stop, "cost_usd": result.response.cost_usd}
