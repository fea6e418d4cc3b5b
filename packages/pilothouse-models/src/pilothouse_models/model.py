"""`LanguageModel`: one request, one answer, no state; the form in which frameworks use models.

Owns the settings of a request and how its messages, tools and system prompt become one prompt of a fresh process.
"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pilothouse.client import Agent, OutputSchema, Query
from pilothouse.errors import OptionsError, UsageError
from pilothouse.options import Options, render_child_env
from pilothouse.support import hide_arguments, user_class
from pilothouse.tools import text_content
from pilothouse.transports import find_facts
from pilothouse_models.output import OUTPUT_DEMAND, AnswerOutput
from pilothouse_models.request import CallWarning, MessageConverter, RequestTools, ToolSources
from pilothouse_models.stream import AbortSignal, GenerateResult, ModelRun, Stream
from pilothouse_models.xml import encode_turns, read_conversation, system_prompt

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder

DEFAULT_MODEL: Final = "sonnet"
MAX_STEPS: Final = 20  # usual in frameworks: enough for a task with a few tools, and a limit for a model in a loop
MODEL_ALIASES: Final = frozenset({"best", "default", "fable", "haiku", "opus", "opusplan", "sonnet"})
_LONG_CONTEXT_SUFFIX: Final = "[1m]"
# `claude-…`, also with the prefixes and suffixes of cloud providers.
_FULL_ID: Final = re.compile(r"[\w.:/@-]*claude-[\w.:/@-]+")

# Settings of every request: fresh, alone, and without tools of the CLI.
_FIXED_SETTINGS: Final[Mapping[str, Any]] = {
    "tools": [],
    "strict_mcp_config": True,
    "persist_session": False,
    "verbatim_prompts": True,
    **dict.fromkeys(
        (
            "agent", "agents", "continue_conversation", "custom_tools", "fork_session", "json_schema", "mcp_servers",
            "prompt_via", "resume", "resume_drops_turn", "resume_session_at", "session_id", "skills", "tool_bridge",
        )
    ),
}  # fmt: skip
# The text protocol carries the output, so the schema is a setting that the CLI does not get.
_RESERVED_SETTINGS: Final = (frozenset(_FIXED_SETTINGS) | {"partial_messages"}) - {"json_schema"}
_IGNORED_SETTINGS: Final = frozenset(
    {"frequency_penalty", "presence_penalty", "seed", "stop_sequences", "temperature", "top_k", "top_p"}
)

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, str]
_CALL_ANY_TOOL: Final = "Call at least one of the tools in your next answer; do not answer without."
_CALL_ONE_TOOL: Final = "Call the tool {name} in your next answer; do not answer without."


@user_class
class LanguageModel:
    """A language model: messages and tools in, text and calls out. Immutable and stateless.

    Each request runs in a fresh process of the CLI, without its tools or MCP, and keeps nothing on disk. The process
    runs in an empty directory, unless `cwd`, `setting_sources`, `user` or a `transport` sets another. Tools are
    declared in the system prompt, and the model calls them in text.

    Args:
        model: an alias ("sonnet", "opus", "haiku" …) or a full id (`claude-…`); "sonnet" by default.
        options: settings to start from.
        **settings: settings that override `options`, such as `max_thinking_tokens`, `effort`, `timeout`, `env`,
            `can_use_tool`, `hooks`, `system_prompt`; see `pilothouse.Options`.

    Raises:
        UsageError: an unknown model, or a setting that is not valid or not supported here; before anything is
            started.
    """

    __slots__ = ("_agent", "_model")

    @hide_arguments
    def __init__(
        self, model: str | None = None, *, options: Options | OptionsBuilder | None = None, **settings: Any
    ) -> None:
        given = Options() if options is None else _build_options(options)
        _check_settings([*settings, *given])
        self._agent = Agent(options, **settings)
        self._model = check_model(model or (given.model if "model" in given else None) or DEFAULT_MODEL)

    def __repr__(self) -> str:
        return f"LanguageModel({self._model!r})"

    @property
    def model(self) -> str:
        """The alias or id of the model."""
        return self._model

    @hide_arguments
    async def generate(
        self,
        messages: str | Iterable[Any],
        tools: ToolSources | None = None,
        *,
        tool_choice: ToolChoice = "auto",
        max_steps: int = MAX_STEPS,
        output_type: Any = None,
        abort: AbortSignal | None = None,
        **settings: Any,
    ) -> GenerateResult:
        """Send a request and wait for the whole answer.

        Args:
            messages: the conversation, oldest first: mappings with `role` (user, assistant, tool, system) and
                `content`, a text or parts; or a text. Parts are those of AI SDKs (text, image, file, reasoning,
                tool-call, tool-result), blocks of the Messages API, or the typed parts of `pilothouse`.
            tools: functions and `Tool`s run here, and the model continues with their results; calls of declarations
                without a function are returned, with finish reason "tool-calls".
            tool_choice: "auto", "none", "required", or `{"tool_name": …}`. The model is instructed, but not forced.
            max_steps: maximum number of answers of the model, at least 1; 20 by default. Calls of the last step still
                run.
            output_type: what the answer must be, as `output` of the result: a msgspec struct, dataclass, TypedDict,
                pydantic model or JSON Schema. The setting `json_schema` does the same with a schema alone.
            abort: an event; when it is set, the request ends with `Interrupted`. If set before, nothing is started.
            **settings: settings for this request; they override those of the model.

        Raises:
            UsageError: a message, tool or setting is not valid; before anything is started.
            ResultError: the request failed; the class says how: `RateLimitError`, `AuthenticationError`,
                `MaxTurnsError`, `BudgetError`; `StructuredOutputError`: there is no output that fits.
            Interrupted: the request was aborted, or a permission callback stopped it.
            ProcessError, QueryTimeout: the CLI could not be started, or did not respond.
        """
        request = (messages, tools, tool_choice, max_steps, output_type, abort, settings)
        async with self._make_stream(*request, partial=False) as stream:
            return await stream.result()

    @hide_arguments
    def stream(
        self,
        messages: str | Iterable[Any],
        tools: ToolSources | None = None,
        *,
        tool_choice: ToolChoice = "auto",
        max_steps: int = MAX_STEPS,
        output_type: Any = None,
        abort: AbortSignal | None = None,
        **settings: Any,
    ) -> Stream:
        """Send a request and read the answer while it is written; arguments as for `generate`.

        Raises:
            UsageError: a message, tool or setting is not valid; raised here. Other errors are an `AnswerFailed` event
                of the stream.
        """
        request = (messages, tools, tool_choice, max_steps, output_type, abort, settings)
        return self._make_stream(*request, partial=True)

    def _make_stream(
        self,
        messages: Any,
        tools: ToolSources | None,
        tool_choice: Any,
        max_steps: Any,
        output_type: Any,
        abort: AbortSignal | None,
        settings: dict[str, Any],
        *,
        partial: bool,
    ) -> Stream:
        warnings = [
            CallWarning("unsupported-setting", f"{name}: the CLI has no such setting; it is ignored")
            for name in sorted(settings.keys() & _IGNORED_SETTINGS)
        ]
        settings = {name: value for name, value in settings.items() if name not in _IGNORED_SETTINGS}
        _check_settings(settings)
        if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
            raise UsageError(f"max_steps: a number above 0 is needed, not {max_steps!r}")
        if abort is not None and not inspect.iscoroutinefunction(getattr(abort, "wait", None)):
            raise UsageError("abort: an event whose wait() can be awaited is needed, such as anyio.Event()")
        model = check_model(settings.pop("model", None) or self._model)
        options = self._agent.with_options(**settings).options
        reading = MessageConverter()
        conversation = read_conversation(reading.convert(messages))
        offer, demand = _apply_tool_choice(tool_choice, RequestTools(tools))
        output = _make_output(options, output_type)
        base = "\n\n".join(filter(None, [_get_system_prompt(options), conversation.system]))
        run = ModelRun(
            options,
            offer,
            base,
            max_steps,
            used_ids=reading.call_ids,
            must_call=bool(demand),
            warnings=[*warnings, *offer.warnings, *reading.warnings],
            output=output,
        )
        cache_control, environment = _plan_caching(options)
        content = encode_turns(conversation.turns, run.nonce, cache_control=cache_control)
        if demand:
            content.append(text_content(demand).body)  # behind the mark: the next request may have another choice
        prompt = system_prompt(run.available_tools, run.nonce, base=base or None)
        changes: dict[str, Any] = {
            **_FIXED_SETTINGS,
            "model": model,
            "partial_messages": partial,
            "system_prompt": prompt if output is None else f"{prompt}\n\n{OUTPUT_DEMAND}",
            "extra_args": {"system-prompt-snapshot": "off", **(options.extra_args or {})},
            "env": {**(options.env or {}), **environment},
        }
        if "setting_sources" not in options:
            changes["setting_sources"] = []
            if _is_local_run(options):
                changes["cwd"] = _make_empty_directory()
        # The run is the bridge of its query, and its steps return the messages unchanged.
        query = Query(content, options.with_(**changes), bridge=run)
        query.unsent_hint = "read the stream, await its `result()`, or close it"
        return Stream(query, run, abort)


def _plan_caching(options: Options) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the cache mark for the conversation of a request, and the variables that the CLI gets for it.

    The CLI sets its last mark behind a message about the environment, which follows the conversation and is never the
    beginning of another request. Its marks and ours must have the same lifetime, or the API refuses the
    request; so the lifetime is set, and not left to the CLI.
    """
    env = {name for name, value in render_child_env(options, os.environ).items() if value not in ("", "0", "false")}
    if any(name.startswith("DISABLE_PROMPT_CACHING") for name in env):
        return None, {}
    settings: Any = options.settings
    lifetime: Any = "1h" if settings is None and "ENABLE_PROMPT_CACHING_1H" in env else "5m"
    if isinstance(settings, Mapping):
        lifetime = cast("Any", settings).get("promptCacheTtl", lifetime)
    if lifetime == "1h" and "FORCE_PROMPT_CACHING_5M" not in env:
        return {"type": "ephemeral", "ttl": "1h"}, {"ENABLE_PROMPT_CACHING_1H": "1"}
    return {"type": "ephemeral"}, {"FORCE_PROMPT_CACHING_5M": "1"}


def _make_output(options: Options, output_type: Any) -> AnswerOutput | None:
    """Return the structured output that a request asks for, if any."""
    wanted = output_type
    if options.json_schema is not None:
        if output_type is not None:
            raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
        wanted = dict(options.json_schema)
    return None if wanted is None else AnswerOutput(OutputSchema.from_type(wanted), options.output_repairs)


def _is_local_run(options: Options) -> bool:
    """Whether the process runs on this machine as this user, without a directory set by the options."""
    is_here = options.transport is None or find_facts(options.transport).is_local
    return is_here and options.cwd is None and options.user is None


# By process, because a fork must not remove its parent's directory.
_empty_directories: dict[int, str] = {}


def _make_empty_directory() -> str:
    """Return an empty directory: the CLI reports its directory to the model, which should not learn the caller's."""
    path = _empty_directories.get(os.getpid())
    if path is None or not os.path.isdir(path):  # noqa: PTH112 - a string
        path = _empty_directories[os.getpid()] = tempfile.mkdtemp(prefix="pilothouse-")
    return path


@atexit.register
def _remove_empty_directory() -> None:
    with suppress(OSError):
        os.rmdir(_empty_directories.pop(os.getpid(), ""))  # noqa: PTH106 - a string


def check_model(model: Any) -> str:
    """Validate a model: an alias that the CLI knows, or a name that looks like a full id.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(model, str):
        name = model.removesuffix(_LONG_CONTEXT_SUFFIX)
        if name in MODEL_ALIASES or _FULL_ID.fullmatch(name):
            return model
    raise UsageError(
        f"model: {model!r} is not known; it has to be an alias ({', '.join(sorted(MODEL_ALIASES))}) or a full id, "
        "claude-…"
    )


def _apply_tool_choice(choice: Any, offer: RequestTools) -> tuple[RequestTools, str]:
    """Return the tools that are offered, and the instruction to the model about them."""
    if choice == "none":
        return RequestTools(None), ""
    if choice in ("auto", None):
        return offer, ""
    names = [tool.name for tool in offer.local_tools] + list(offer.declared_tools)
    if choice == "required" and names:
        return offer, _CALL_ANY_TOOL
    named: Any = cast("Mapping[str, Any]", choice) if isinstance(choice, Mapping) else {}
    name = named.get("tool_name") or named.get("toolName") or named.get("name")
    if name in names:
        return offer, _CALL_ONE_TOOL.format(name=name)
    known = ", ".join(names) or "none"
    raise UsageError(
        f"tool_choice: {choice!r} is none of 'auto', 'none', 'required' and {{'tool_name': …}}, or there is no such "
        f"tool; the tools are: {known}"
    )


def _check_settings(names: Iterable[str]) -> None:
    for name in names:
        if name in _RESERVED_SETTINGS:
            raise OptionsError(f"option {name!r} has no place here: a LanguageModel decides it", option=name)


def _build_options(options: Any) -> Options:
    made = options.build() if hasattr(options, "build") else options
    if not isinstance(made, Options):
        raise OptionsError(f"options: expected pilothouse.Options, got {type(options).__name__}")
    return made


def _get_system_prompt(options: Options) -> str | None:
    prompt = options.system_prompt
    if prompt is None or isinstance(prompt, str):
        return prompt
    raise OptionsError(
        "option 'system_prompt' has to be a text here: system messages and tools are added to it",
        option="system_prompt",
    )
