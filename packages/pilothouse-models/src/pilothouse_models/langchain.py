"""`ChatPilothouse`: Claude Code as a chat model of LangChain. Extra `[langchain]`.

Owns the translation between LangChain's messages and `LanguageModel`; the tools of LangChain run in LangChain.
`agent_tools` is the other way: tools of LangChain for an agent of pilothouse.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

try:
    import langchain_core as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "ChatPilothouse needs langchain_core; install it with: pip install 'pilothouse[langchain]'",
        name="langchain_core",
    ) from missing

import msgspec
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, Field, PrivateAttr, SecretStr

from pilothouse.errors import ExecutionError, UsageError
from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta, ToolCall
from pilothouse.support import find_similar_name
from pilothouse.tools import Tool, create_tool
from pilothouse_models import AnswerFailed, AnswerFinished, GenerateResult, LanguageModel, ModelEvent
from pilothouse_models.endpoints.exchange import MAX_ATTEMPTS, StopTextFilter
from pilothouse_models.json_text import json_text
from pilothouse_models.model import DEFAULT_MODEL
from pilothouse_models.sync import LanguageModel as BlockingLanguageModel

_ROLES: Final[Mapping[str, str]] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_CALL_TYPES: Final = frozenset({"tool_use", "tool_call", "tool_call_chunk", "server_tool_call", "invalid_tool_call"})
_MEDIA_KEYS: Final = ("base64", "data", "url", "source")


def agent_tools(tools: Iterable[BaseTool]) -> list[Tool[..., Any]]:
    """Make tools of LangChain tools of an agent of pilothouse: `Agent(custom_tools=agent_tools([search]))`.

    Args:
        tools: tools of LangChain, also those of `@tool`. They run in this process, by their `ainvoke`.
    """
    return [_make_agent_tool(each) for each in tools]


def _make_agent_tool(given: BaseTool) -> Tool[..., Any]:
    async def call(arguments: dict[str, Any]) -> Any:
        return await given.ainvoke(arguments)

    declared = convert_to_openai_tool(given)["function"]
    return create_tool(declared["name"], declared.get("description", ""), declared["parameters"], call)


class ChatPilothouse(BaseChatModel):
    """Claude Code as a chat model of LangChain, with tools, typed output, streams and usage.

    ::

        from langchain.agents import create_agent
        from pilothouse_models.langchain import ChatPilothouse

        agent = create_agent(ChatPilothouse("sonnet"), tools=[weather])

    Args:
        model: an alias ("sonnet", "opus" …) or a full id (`claude-…`). Default "sonnet".
        settings: settings of `pilothouse.Options`, such as `cli`, `env`, `max_thinking_tokens`, `transport`.
        api_key: of the API; without one, the login or key of Claude Code.
        temperature: accepted, and without effect: Claude Code has no such setting.
        max_tokens: limit of one answer, in tokens.
        timeout: seconds for a request. Default: no limit.
        max_retries: how often a request is repeated after a passing failure, besides the retries of the CLI.
        stop: texts at which an answer is cut.
        streaming: whether `invoke` streams, too, for callbacks.

    Raises:
        UsageError: the model or a setting is not valid, or there is no such argument.
        PilothouseError: a request failed, as with `LanguageModel.generate`.
    """

    model: str = DEFAULT_MODEL
    # They may contain keys, and LangChain sends the `repr` of a model to its tracers.
    settings: dict[str, Any] = Field(default_factory=dict[str, Any], exclude=True, repr=False)
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    max_retries: int | None = None
    stop: list[str] | None = None
    streaming: bool = False
    _instance_id: bytes = PrivateAttr(default_factory=lambda: uuid.uuid4().bytes)

    def __init__(self, model: str | None = None, **fields: Any) -> None:
        known = type(self).model_fields
        for name in fields.keys() - known.keys():  # pydantic would ignore it
            near = find_similar_name(name, known)
            hint = f"did you mean {near!r}?" if near else f"an option of Claude Code is settings={{{name!r}: …}}"
            raise UsageError(f"{type(self).__name__} has no argument {name!r}; {hint}")
        named: dict[str, Any] = {} if model is None else {"model": model}
        super().__init__(**named, **fields)
        LanguageModel(self.model, **self._settings)  # an error here, and not with the first request

    @property
    def _llm_type(self) -> str:
        return "pilothouse"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": self.max_tokens, "temperature": self.temperature}

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Return what LangChain's cache goes by. A digest of the settings, because they may contain keys."""
        try:
            settings = msgspec.json.encode(self._settings, order="sorted")
        except (TypeError, ValueError):  # objects, such as a transport: shared with no other model
            settings = self._instance_id
        given = super()._get_llm_string(stop=stop or self.stop, **kwargs)
        return f"{given}---{hashlib.sha256(settings).hexdigest()}"

    @property
    def _settings(self) -> dict[str, Any]:
        limits = {"max_output_tokens": self.max_tokens, "timeout": self.timeout, "retry": self.max_retries}
        key = None if self.api_key is None else self.api_key.get_secret_value()
        given = {**limits, "api_key": key}
        return {**self.settings, **{name: value for name, value in given.items() if value is not None}}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "pilothouse"
        params["ls_model_name"] = str(kwargs.get("model") or self.model)
        return params

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools; their calls are those of the answer.

        Args:
            tools: functions, tools, pydantic models or schemas.
            tool_choice: "auto", "none", "any" or "required", or the name of a tool. The model is instructed, but not
                forced.
            **kwargs: further arguments of each request.
        """
        declared = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=declared, tool_choice=_convert_choice(tool_choice), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Return this model with typed answers: instances of a pydantic model, else dictionaries.

        Args:
            schema: a pydantic model, TypedDict or JSON Schema.
            include_raw: whether the result is a dictionary with `raw`, `parsed` and `parsing_error`.
            method: "json_schema" (default) checks the answer, and asks again for one that does not fit;
                "function_calling" is LangChain's own way; "json_mode" takes any JSON object.
            **kwargs: as for `bind_tools`.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        kwargs.pop("strict", None)
        wanted = convert_to_json_schema(schema)
        sent: dict[str, Any] = {"type": "object"} if method == "json_mode" else wanted
        form = {"kwargs": {"method": method}, "schema": wanted}
        model = self.bind(json_schema=sent, ls_structured_output_format=form, **kwargs)
        parser: Any = JsonOutputParser()
        if is_basemodel_subclass(cast("Any", schema)):
            parser = PydanticOutputParser(pydantic_object=cast("Any", schema))
        if not include_raw:
            return model | parser
        parsed: Any = RunnablePassthrough.assign(parsed=lambda found: parser.invoke(found["raw"]), parsing_error=_none)
        failed: Any = RunnablePassthrough.assign(parsed=_none)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        model = BlockingLanguageModel(self.model, **self._settings)
        given, request = self._make_request(messages, kwargs)
        return _make_chat_result(model.generate(given, **request), stop or self.stop)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        model = LanguageModel(self.model, **self._settings)
        given, request = self._make_request(messages, kwargs)
        return _make_chat_result(await model.generate(given, **request), stop or self.stop)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        given, request = self._make_request(messages, kwargs)
        chunks = _ChunkMaker(stop or self.stop)
        with BlockingLanguageModel(self.model, **self._settings).stream(given, **request) as stream:
            for event in stream:
                for chunk in chunks.read(event):
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        given, request = self._make_request(messages, kwargs)
        chunks = _ChunkMaker(stop or self.stop)
        async with LanguageModel(self.model, **self._settings).stream(given, **request) as stream:
            async for event in stream:
                for chunk in chunks.read(event):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    def _make_request(
        self, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        request = {name: value for name, value in kwargs.items() if name in _REQUEST_ARGUMENTS and value is not None}
        request["max_steps"] = MAX_ATTEMPTS
        if kwargs.get("max_tokens") is not None:
            request["max_output_tokens"] = kwargs["max_tokens"]
        return [_convert_message(message) for message in messages], request


_REQUEST_ARGUMENTS: Final = frozenset(
    {"tools", "tool_choice", "json_schema", "max_thinking_tokens", "effort", "timeout", "model"}
)


def _none(_: Any) -> None:
    return None


def _convert_choice(choice: Any) -> Any:
    if choice in (None, False, "auto"):
        return "auto"
    if choice in (True, "any", "required"):
        return "required"
    if isinstance(choice, Mapping):
        named = cast("Mapping[str, Any]", choice)
        return {"tool_name": named.get("function", named).get("name")}
    return choice if choice == "none" else {"tool_name": choice}


def _convert_message(message: BaseMessage) -> dict[str, Any]:
    role = _ROLES.get(message.type.removesuffix("MessageChunk").lower()) or getattr(message, "role", None)
    parts: list[dict[str, Any]] = []
    content: Any = message.content
    for part in [content] if isinstance(content, str) else content:
        parts += _convert_part(part)
    if isinstance(message, ToolMessage):
        failed = {"is_error": True} if message.status == "error" else {}
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": parts, **named, **failed}
    if isinstance(message, AIMessage):
        calls = [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["args"]} for c in message.tool_calls]
        return {"role": "assistant", "content": [*parts, *calls]}
    return {"role": role, "content": parts}


def _convert_part(part: str | dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    kind = part.get("type")
    if kind in _CALL_TYPES:
        return []  # they are in `tool_calls`
    if kind == "image_url":
        image: Any = part["image_url"]
        return [{"type": "image", "image": image["url"] if isinstance(image, Mapping) else image}]
    if kind == "reasoning":
        return [{"type": "thinking", "thinking": part.get("reasoning") or ""}]
    if kind in ("image", "file") and "source" not in part:
        data = next((part[key] for key in _MEDIA_KEYS if part.get(key) is not None), None)
        if data is None and isinstance(part.get("file"), Mapping):
            data = part["file"].get("file_data")
        media: dict[str, Any] = {"type": kind, "data": data, "media_type": part.get("mime_type")}
        return [{**media, "filename": part.get("filename") or part.get("name")}]
    return [part]


def _make_chat_result(result: GenerateResult, stop: Sequence[str] | None) -> ChatResult:
    text, stopped_by = _cut(result.text, stop)
    calls = [] if stopped_by else [{"name": c.name, "args": c.input, "id": c.id} for c in result.pending_calls]
    message = AIMessage(
        content=text,
        tool_calls=cast("Any", calls),
        usage_metadata=_make_usage(result),
        response_metadata=_make_metadata(result, stopped_by),
        additional_kwargs={"reasoning_content": result.reasoning} if result.reasoning else {},
        id=result.response.message_id,
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _cut(text: str, stop: Sequence[str] | None) -> tuple[str, str | None]:
    stops = StopTextFilter(stop or ())
    return stops.feed(text) + stops.end(), stops.found


def _make_usage(result: GenerateResult) -> UsageMetadata:
    usage = result.usage
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_token_details={"cache_read": usage.cached_input_tokens, "cache_creation": usage.cache_write_tokens},
        output_token_details={"reasoning": usage.reasoning_tokens},
    )


def _make_metadata(result: GenerateResult, stopped_by: str | None) -> dict[str, Any]:
    reason = "stop" if stopped_by is not None else result.finish_reason
    made: dict[str, Any] = {
        "finish_reason": reason,
        "model_name": result.response.model,
        "model_provider": "pilothouse",
        "cost_usd": result.response.cost_usd,
    }
    if stopped_by is not None:
        made["stop_sequence"] = stopped_by
    if result.warnings:
        made["warnings"] = [warning.message for warning in result.warnings]
    return made


class _ChunkMaker:
    """Makes the chunks of one streamed answer from its events."""

    def __init__(self, stop: Sequence[str] | None) -> None:
        self._stops = StopTextFilter(stop or ())

    def read(self, event: ModelEvent) -> Iterator[ChatGenerationChunk]:
        match event:
            case TextDelta():
                yield from self._text(self._stops.feed(event.text))
            case ThinkingDelta():
                yield _chunk(AIMessageChunk(content="", additional_kwargs={"reasoning_content": event.text}))
            case TextRetracted(text=text) if text:
                raise ExecutionError("the answer broke off after a part of it was streamed; send the request again")
            case AnswerFailed():
                raise event.error
            case AnswerFinished():
                yield from self._finish(event.result)
            case _:
                pass

    def _text(self, text: str) -> Iterator[ChatGenerationChunk]:
        if text:
            yield _chunk(AIMessageChunk(content=text))

    def _finish(self, result: GenerateResult) -> Iterator[ChatGenerationChunk]:
        yield from self._text(self._stops.end())
        calls: Sequence[ToolCall] = () if self._stops.found is not None else result.pending_calls
        for index, call in enumerate(calls):
            part = tool_call_chunk(name=call.name, args=json_text(call.input), id=call.id, index=index)
            yield _chunk(AIMessageChunk(content="", tool_call_chunks=[part]))
        end = AIMessageChunk(
            content="",
            usage_metadata=_make_usage(result),
            response_metadata=_make_metadata(result, self._stops.found),
            chunk_position="last",
        )
        yield _chunk(end)


def _chunk(message: AIMessageChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=message)
