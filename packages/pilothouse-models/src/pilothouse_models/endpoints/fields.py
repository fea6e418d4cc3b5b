"""What becomes of each field of a request: one table for each protocol. Plain data, and the function that applies it.

A field is used, or it is ignored and the response names it in a header, or the request is refused. Only what leaves
the meaning of the request alone may be ignored. Fields that no table knows are ignored and named.

Checked against the types of openai 3.57 and anthropic 2.14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from pilothouse_models.endpoints.exchange import EndpointError, JsonBody

MAX_HEADER_CHARS: Final = 1000
"""Longest list of names in the header; a client could send thousands of fields."""


class Field(msgspec.Struct, frozen=True):
    """A field of a request.

    Args:
        use: what happens to it.
        reason: why a request with it is refused, and what to do instead.
        harmless: values that ask for what happens anyway, so that they are neither refused nor named. False, and empty
            texts, arrays and objects always are.
        details: what Anthropic's form of the error has besides its text.
    """

    use: Literal["used", "ignored", "refused"]
    reason: str = ""
    harmless: tuple[Any, ...] = ()
    details: Mapping[str, Any] | None = None

    def asks_nothing(self, value: Any) -> bool:
        """Whether the value asks for nothing that would not happen anyway."""
        return value is False or value in ("", [], {}, *self.harmless)


Fields: TypeAlias = Mapping[str, Field]
"""Fields by path: `text.format` is in an object, `tools[].name` in each object of an array."""

_USED: Final = Field("used")
_IGNORED: Final = Field("ignored")


def _refuse(reason: str, *harmless: Any, details: Mapping[str, Any] | None = None) -> Field:
    return Field("refused", reason, harmless, details)


def _ignore(*harmless: Any) -> Field:
    return Field("ignored", harmless=harmless)


_NO_LOGPROBS: Final = _refuse("Claude Code reports no probabilities of tokens", 0)
_NO_MODERATION: Final = _refuse("there is no moderation here; check the texts before and after the request")
_ONLY_CLIENT_CALLS: Final = _refuse("only the model itself can call tools here", ["direct"])
_NO_FUNCTIONS: Final = _refuse("this older form is not supported; use tools and tool_choice")

CHAT_FIELDS: Final[Fields] = {
    "messages": _USED,
    "messages[].role": _USED,
    "messages[].content": _USED,
    "messages[].tool_calls": _USED,
    "messages[].tool_call_id": _USED,
    "messages[].refusal": _USED,
    "messages[].name": _IGNORED,
    "messages[].audio": _refuse("there is no audio here; send the text"),
    "messages[].function_call": _NO_FUNCTIONS,
    "model": _USED,
    "audio": _refuse("answers are text"),
    "frequency_penalty": _ignore(0),
    "function_call": _refuse(_NO_FUNCTIONS.reason, "auto", "none"),
    "functions": _NO_FUNCTIONS,
    "logit_bias": _refuse("Claude Code cannot ban or prefer tokens"),
    "logprobs": _NO_LOGPROBS,
    "max_completion_tokens": _USED,
    "max_tokens": _USED,
    "metadata": _IGNORED,
    "modalities": _refuse("answers are text", ["text"]),
    "moderation": _NO_MODERATION,
    "n": _refuse("there is one answer to a request; send it again for another", 1),
    "parallel_tool_calls": _USED,
    "prediction": _IGNORED,
    "presence_penalty": _ignore(0),
    "prompt_cache_key": _IGNORED,
    "prompt_cache_options": _IGNORED,
    "prompt_cache_retention": _IGNORED,
    "reasoning_effort": _USED,
    "response_format": _USED,
    "response_format.type": _USED,
    "response_format.json_schema": _USED,
    "response_format.json_schema.name": _USED,
    "response_format.json_schema.schema": _USED,
    "response_format.json_schema.strict": _USED,
    "response_format.json_schema.description": _IGNORED,
    "safety_identifier": _IGNORED,
    "seed": _IGNORED,
    "service_tier": _ignore("auto", "default"),
    "stop": _USED,
    "store": _IGNORED,
    "stream": _USED,
    "stream_options": _USED,
    "stream_options.include_usage": _USED,
    "stream_options.include_obfuscation": _IGNORED,
    "temperature": _IGNORED,
    "tool_choice": _USED,
    "tools": _USED,
    "tools[].type": _USED,
    "tools[].function": _USED,
    "tools[].function.name": _USED,
    "tools[].function.description": _USED,
    "tools[].function.parameters": _USED,
    "tools[].function.strict": _USED,
    "top_logprobs": _NO_LOGPROBS,
    "top_p": _IGNORED,
    "user": _IGNORED,
    "verbosity": _IGNORED,
    "web_search_options": _refuse("there is no web search here; offer a tool that searches"),
}

RESPONSES_FIELDS: Final[Fields] = {
    "access_programs": _refuse("there are no access programs here", {"cyber": "standard"}),
    "background": _refuse("there is no background work here; keep the connection open"),
    "background_options": _refuse("there is no background work here; keep the connection open"),
    "context_management": _refuse("the conversation is sent as it is; shorten it before you send it"),
    "conversation": _refuse("there are no conversations here; previous_response_id continues one"),
    "image": _IGNORED,
    "include": _IGNORED,
    "input": _USED,
    "instructions": _USED,
    "max_output_tokens": _USED,
    "max_tool_calls": _IGNORED,
    "metadata": _USED,
    "model": _USED,
    "moderation": _NO_MODERATION,
    "parallel_tool_calls": _USED,
    "previous_response_id": _USED,
    "prompt": _refuse("there are no stored prompts here; send the text as instructions and input"),
    "prompt_cache_key": _IGNORED,
    "prompt_cache_options": _USED,
    "prompt_cache_options.comparison_response_id": _IGNORED,
    "prompt_cache_options.mode": _IGNORED,
    "prompt_cache_options.prewarm": _refuse("a cache cannot be filled without an answer"),
    "prompt_cache_options.ttl": _IGNORED,
    "prompt_cache_retention": _IGNORED,
    "reasoning": _USED,
    "reasoning.context": _ignore("auto"),
    "reasoning.effort": _USED,
    "reasoning.generate_summary": _USED,
    "reasoning.mode": _ignore("standard"),
    "reasoning.summary": _USED,
    "safety_identifier": _IGNORED,
    "service_tier": _ignore("auto", "default"),
    "store": _USED,
    "stream": _USED,
    "stream_options": _USED,
    "stream_options.include_obfuscation": _IGNORED,
    "temperature": _IGNORED,
    "text": _USED,
    "text.format": _USED,
    "text.format.type": _USED,
    "text.format.name": _USED,
    "text.format.schema": _USED,
    "text.format.strict": _USED,
    "text.format.description": _IGNORED,
    "text.verbosity": _IGNORED,
    "tool_choice": _USED,
    "tools": _USED,
    "tools[].type": _USED,
    "tools[].name": _USED,
    "tools[].description": _USED,
    "tools[].parameters": _USED,
    "tools[].strict": _USED,
    "tools[].allowed_callers": _ONLY_CLIENT_CALLS,
    "tools[].async": _IGNORED,
    "tools[].defer_loading": _IGNORED,
    "tools[].output_schema": _IGNORED,
    "top_logprobs": _NO_LOGPROBS,
    "top_p": _IGNORED,
    "truncation": _ignore("disabled"),
    "user": _IGNORED,
}

MESSAGES_FIELDS: Final[Fields] = {
    "max_tokens": _USED,
    "messages": _USED,
    "messages[].role": _USED,
    "messages[].content": _USED,
    "messages[].clear_at": _USED,
    "messages[].output_config": _IGNORED,
    "model": _USED,
    "billing_policy": _refuse(
        "the account of the server pays for every request",
        {"type": "billing_policy"},
        {"type": "billing_policy", "bill_to": "self"},
    ),
    "cache_control": _IGNORED,
    "compaction": _refuse("conversations are not summarized here; ask for a summary in the prompt"),
    "container": _refuse("there are no containers here"),
    "context_management": _USED,
    "context_management.edits": _USED,
    "diagnostics": _IGNORED,
    "fallback_credit_token": _refuse("no such token was given out here"),
    "fallbacks": _refuse("no other model is tried here; send the request again with its name", "default"),
    "inference_geo": _refuse("the region is that of the server's account and cannot be chosen"),
    "mcp_servers": _refuse("MCP servers are not connected here; offer their tools in tools"),
    "metadata": _IGNORED,
    "output_config": _USED,
    "output_config.effort": _USED,
    "output_config.format": _USED,
    "output_config.format.type": _USED,
    "output_config.format.schema": _USED,
    "output_config.task_budget": _refuse("there is no budget over several requests; max_tokens limits each"),
    "output_format": _USED,
    "service_tier": _ignore("auto"),
    "speed": _ignore("standard"),
    "stop_sequences": _USED,
    "stream": _USED,
    "system": _USED,
    "temperature": _IGNORED,
    "thinking": _USED,
    "thinking.type": _USED,
    "thinking.budget_tokens": _USED,
    "thinking.block_binding": _IGNORED,
    "thinking.display": _IGNORED,
    "thread": _refuse(
        "the server keeps no conversations; send all messages, without thread",
        details={"error_code": "thread_unsupported_request"},
    ),
    "tool_choice": _USED,
    "tool_choice.type": _USED,
    "tool_choice.name": _USED,
    "tool_choice.disable_parallel_tool_use": _USED,
    "tools": _USED,
    "tools[].type": _USED,
    "tools[].name": _USED,
    "tools[].description": _USED,
    "tools[].input_schema": _USED,
    "tools[].strict": _USED,
    "tools[].allowed_callers": _ONLY_CLIENT_CALLS,
    "tools[].cache_control": _IGNORED,
    "tools[].defer_loading": _IGNORED,
    "tools[].eager_input_streaming": _IGNORED,
    "tools[].input_examples": _IGNORED,
    "top_k": _IGNORED,
    "top_p": _IGNORED,
}


def check_fields(fields: Fields, body: JsonBody) -> tuple[str, ...]:
    """Return the paths of the fields that are set and have no effect.

    Raises:
        EndpointError: a field asks for what cannot be done here (400).
    """
    ignored: set[str] = set()
    prefixes = {f"{path.rpartition('.')[0]}." for path in fields}
    for path, value in _walk(prefixes, body, ""):
        field = fields.get(path, _IGNORED)
        if field.use == "used" or value is None or field.asks_nothing(value):
            continue
        if field.use == "refused":
            raise make_refusal(path, field.reason, details=field.details)
        ignored.add(path)
    return tuple(sorted(ignored))


def make_refusal(path: str, reason: str, *, details: Mapping[str, Any] | None = None) -> EndpointError:
    """Make the error for a field that asks for what cannot be done here."""
    text = f"{path}: {reason}"
    return EndpointError(400, "invalid_request_error", text, code="unsupported_parameter", param=path, details=details)


def _walk(prefixes: Collection[str], body: JsonBody, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        path = f"{prefix}{name}"
        yield path, value
        if isinstance(value, dict) and f"{path}." in prefixes:
            yield from _walk(prefixes, cast("JsonBody", value), f"{path}.")
        elif isinstance(value, list) and f"{path}[]." in prefixes:
            for each in cast("list[Any]", value):
                if isinstance(each, dict):
                    yield from _walk(prefixes, cast("JsonBody", each), f"{path}[].")


def encode_names(names: tuple[str, ...]) -> bytes:
    """Encode a list of names as the value of a header, whatever a client has called its fields."""
    text = ", ".join("".join(char if char.isprintable() else "?" for char in name) for name in names)
    shown = text if len(text) <= MAX_HEADER_CHARS else f"{text[:MAX_HEADER_CHARS]}..."
    return shown.encode("ascii", "replace")
