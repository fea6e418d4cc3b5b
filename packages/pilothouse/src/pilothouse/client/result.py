"""`QueryResult`: the whole answer, read from its messages, and the typed error of a failed result.

Pure; built the same way from a stream or from a list. The rules for errors are tables: the CLI reports a
failure in the HTTP status of the API, the `error` of the last assistant message, `terminal_reason`, or the subtype of
the result.
"""

from __future__ import annotations

import html
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import (
    ERRORS_BY_STATUS,
    AuthenticationError,
    BudgetError,
    ContextOverflowError,
    ExecutionError,
    Interrupted,
    InvalidModelError,
    MaxTurnsError,
    NoResultError,
    OverloadedError,
    PilothouseError,
    QuotaError,
    RateLimitError,
    RefusalError,
    ResultError,
    SessionNotFoundError,
    StartupRefusedError,
    StructuredOutputError,
    UsageError,
)
from pilothouse.messages import (
    AssistantMessage,
    DoneMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    ModelUsage,
    PermissionDenial,
    RateLimitEvent,
    ResultMessage,
    ToolUseBlock,
    Usage,
)
from pilothouse.options.credentials import name_credential
from pilothouse.options.secrets import mask_text
from pilothouse.tracebacks import explain_missing_attribute

INTERRUPTED_REASONS = frozenset({"aborted_streaming", "aborted_tools"})

# The API reports a usage limit as a 429 or as plain text; a short wait does not help.
_QUOTA_TEXT = (
    "you've hit your",
    "you've reached your",
    "out of usage",
    "out of extra usage",
    "usage allocation",
    "usage credits",
    "extra usage",
    "credit balance is too low",
)

_BY_TEXT: tuple[tuple[tuple[str, ...], type[ResultError]], ...] = (
    (_QUOTA_TEXT, QuotaError),
    (("prompt is too long", "exceeds the maximum", "context window", "request too large"), ContextOverflowError),
    (("no conversation found", "does not match any session"), SessionNotFoundError),
    (("not logged in", "please run /login", "invalid api key"), AuthenticationError),
)
_BY_SUBTYPE: dict[str, type[ResultError]] = {
    "error_max_turns": MaxTurnsError,
    "error_max_budget_usd": BudgetError,
    "error_max_structured_output_retries": StructuredOutputError,
}
_BY_REASON: dict[str, type[ResultError]] = {
    "prompt_too_long": ContextOverflowError,
    "image_error": ContextOverflowError,
    "blocking_limit": QuotaError,
    "budget_exhausted": BudgetError,
    "max_turns": MaxTurnsError,
    "structured_output_retry_exhausted": StructuredOutputError,
}
_BY_MESSAGE_ERROR: dict[str, type[ResultError]] = {
    "authentication_failed": AuthenticationError,
    "oauth_org_not_allowed": AuthenticationError,
    "account_on_hold": AuthenticationError,
    "verification_required": AuthenticationError,
    "cloud_credential_error": AuthenticationError,
    "billing_error": QuotaError,
    "rate_limit": RateLimitError,
    "overloaded": OverloadedError,
    "model_not_found": InvalidModelError,
}

_TERMINAL_HINT = " · Please run /login"
"""What the CLI adds for people at a terminal."""
_NO_SUCH_SESSION = re.compile(
    r'.*Provided value "(.*)" is not a UUID and does not match any session title\..*', re.DOTALL
)
"""What the CLI says of an option `resume` that is no id; it begins with the usage of its own command."""
_NOT_LOGGED_IN = "not logged in"
"""How the CLI also begins when the API has refused a token."""

# What to do next, appended to the CLI's text.
_ADVICE: dict[type[ResultError], str] = {
    AuthenticationError: "set ANTHROPIC_API_KEY, pass api_key=…, or use `/login` in `pilothouse chat`",
    InvalidModelError: "check the option model",
    MaxTurnsError: "raise max_turns, or resume the session with its session_id",
    BudgetError: "raise max_budget_usd, or resume the session with its session_id",
    ContextOverflowError: "shorten the prompt or the conversation",
    RateLimitError: "send fewer requests at once, or try again later",
    OverloadedError: "try again in a moment",
    SessionNotFoundError: "check the id: `pilothouse sessions --all` lists those below HOME, or CLAUDE_CONFIG_DIR, of "
    "this process",
    QuotaError: "wait until the limit resets, or use another account or key",
}

CONNECTION_FAILED = "connection_failed"
"""`api_error` of a result when the API could not be reached."""
REFUSED_ADVICE = {
    401: "the API refused {}: check that it is complete, still valid and meant for this API, or set another",
    403: "the API does not permit this with {}: check the rights of its account, or use another",
}
"""Of a key that was sent and refused, by HTTP status."""


def make_result_error(
    result: ResultMessage, messages: Iterable[Message] = (), *, env: Mapping[str, str] | None = None
) -> PilothouseError | None:
    """Make the typed error of a failed or interrupted result; None if it succeeded.

    Args:
        result: the closing message.
        messages: those before it; they contain the reset time of a limit and the cause of an API error.
        env: the environment of the child, to name the variable of a key that was refused, or an address that cannot
            be reached; None: not known.
    """
    if result.terminal_reason in INTERRUPTED_REASONS:
        return Interrupted("the query was interrupted", result=result)
    if not result.is_error:
        return None
    context = _ErrorContext(messages)
    text = failure_text(result)
    kind = _error_class(result, context.error_kind, text)
    advice = _ADVICE.get(kind)
    reason_text = _NO_SUCH_SESSION.sub(r"no session has the id or the title '\1'", text.replace(_TERMINAL_HINT, ""))
    if kind is AuthenticationError and result.api_error_status in REFUSED_ADVICE:  # a missing key has no status
        credential = name_credential(context.key_source, env)
        advice = REFUSED_ADVICE[result.api_error_status].format(credential)
        if reason_text.lower().startswith(_NOT_LOGGED_IN):
            reason_text = "Failed to authenticate"
    if result.api_error == CONNECTION_FAILED and (address := (env or {}).get("ANTHROPIC_BASE_URL")):
        reason_text = f"{reason_text}; ANTHROPIC_BASE_URL is {mask_text(address)}"
    message = f"{reason_text} ({advice})" if advice else reason_text
    details: dict[str, Any] = {"result": result, "api_error_status": result.api_error_status}
    if issubclass(kind, RateLimitError):
        details["resets_at"] = context.resets_at
    if kind is StartupRefusedError:
        details["reason"] = result.startup_failure_reason
    return kind(message, **details)


def make_refusal_error(result: ResultMessage) -> Exception:
    """Make the error for a result in place of an initialize response: `resume` of an unknown id."""
    return make_result_error(result) or PilothouseError("the CLI sent a result before the handshake")


def failure_text(result: ResultMessage) -> str:
    """What the CLI says went wrong, in one text."""
    # `[ede_diagnostic]` lines are internal notes of the CLI; shown only when there is nothing else.
    errors = [text for text in result.errors or () if not text.startswith("[ede_diagnostic]")]
    if errors:
        return "; ".join(errors)
    if result.result:
        return result.result
    reason = result.terminal_reason or result.subtype or "no reason given"
    return f"the run failed: {reason}"


def _error_class(result: ResultMessage, error_kind: str | None, text: str) -> type[ResultError]:
    if result.startup_failure_reason:
        return StartupRefusedError
    lowered = text.lower()
    return (
        _BY_SUBTYPE.get(result.subtype or "")
        or next((kind for parts, kind in _BY_TEXT if any(part in lowered for part in parts)), None)
        or _BY_REASON.get(result.terminal_reason or "")
        or ERRORS_BY_STATUS.get(result.api_error_status or 0)
        or _BY_MESSAGE_ERROR.get(error_kind or "")
        or (RefusalError if result.stop_reason == "refusal" else ExecutionError)
    )


class _ErrorContext:
    """What the messages before a failed result say about it."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.error_kind: str | None = None
        self.resets_at: float | None = None
        self.key_source: str | None = None
        for message in messages:
            if isinstance(message, AssistantMessage):
                self.error_kind = message.error or self.error_kind
            elif isinstance(message, RateLimitEvent):
                self.resets_at = message.rate_limit_info.resets_at or self.resets_at
            elif isinstance(message, InitMessage):
                self.key_source = message.api_key_source


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pilothouse.protocol import ValidationReport

    OutputT = TypeVar("OutputT", covariant=True, default=Any)
else:
    from typing import TypeVar  # only type checkers need the default

    OutputT = TypeVar("OutputT", covariant=True)

log = logging.getLogger("pilothouse")

Outcome = Literal["success", "error", "interrupted"]


class QueryResult(Generic[OutputT]):
    """The answer to one prompt. The `output` of a `QueryResult[Invoice]` is an `Invoice`.

    Build it from any list of messages, collected by a query or loaded from a recording.

    Args:
        messages: all messages of the CLI, in order.
        output: the typed output, if one was requested.
        structured_expected: whether the answer had to fit a JSON Schema, so that its text may be the JSON itself.
        interrupted: whether the query was interrupted, even if no closing message came.
        failure: an error of the answer that its closing message does not report.
        callback_errors: what `on_message` raised.
        incomplete: whether messages were streamed and not kept, so that `messages` is not available.
        is_continuation: whether the conversation had other queries before, whose cost the CLI includes.
        until_idle: whether turns that the CLI began by itself, after the answer, belong to it: the last one closes
            it.

    Attributes:
        result: the closing message, None if none came.
        structured: the structured output as plain Python values, None if none was requested or returned.
        output_attempts: how often the model was asked for its output, repairs included; 0 if none was requested.
        callback_errors: what `on_message` raised.

    Dropping the result of a failed query without a look at how it ended (`error`, `is_success`, `outcome`,
    `raise_for_error()`) logs a warning. Its `repr` is no such look; what a notebook shows of it is one.
    """

    _is_unchecked = False

    def __init__(
        self,
        messages: Iterable[Message],
        *,
        output: Any = None,
        structured_expected: bool = False,
        interrupted: bool = False,
        failure: PilothouseError | None = None,
        callback_errors: Sequence[Exception] = (),
        incomplete: bool = False,
        is_continuation: bool = False,
        until_idle: bool = False,
    ) -> None:
        self._is_continuation = is_continuation
        self._messages = list(messages)
        if self._messages and type(self._messages[0]) is dict:  # pyright: ignore[reportUnnecessaryComparison]
            raise UsageError(
                "messages: expected messages, got dictionaries; from_dict of pilothouse.messages makes them"
            )
        self._incomplete = incomplete
        results = [message for message in self._messages if isinstance(message, ResultMessage)]
        self._answers = results if until_idle else _prompt_results(results)
        self.result = self._answers[-1] if self._answers else None
        self._output: Any = output
        self._structured_expected = structured_expected
        self.structured: Any = _find_structured(self.result, in_text=structured_expected)
        self.output_attempts = 0
        self.callback_errors = list(callback_errors)
        self._failure = failure or self._find_failure(interrupted=interrupted)

    def _find_failure(self, *, interrupted: bool) -> PilothouseError | None:
        if self.result is not None:
            return make_result_error(self.result, self._messages)
        if interrupted:
            return Interrupted("the query was interrupted")
        if any(isinstance(message, DoneMessage) for message in self._messages):
            return None
        return NoResultError("the run has no result message: it did not end, or messages are missing")

    def warn_if_unchecked(self) -> None:
        """Log a warning if this failed result is dropped without a look at how the run ended."""
        self._is_unchecked = self._failure is not None and not isinstance(self._failure, Interrupted)

    def __del__(self) -> None:
        if self._is_unchecked and not sys.is_finalizing():
            log.warning(
                "a query failed, and the program dropped its result without reading `error`, `is_success` or "
                "`raise_for_error()`: %s",
                type(self._failure).__name__,  # the text of the error may quote the conversation
            )

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return (
            f"QueryResult({self._find_outcome()}, text={text!r}, turns={self.turns}, "
            f"cost_usd={self.cost_usd}, session_id={self.session_id!r})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and a line about it.

        Not Markdown: a notebook runs the HTML in it, and loads its images, and the text is the model's.
        """
        cost = "" if self.cost_usd is None else f", ${self.cost_usd:.4f}"
        reason = "" if self.error is None else f"<p><strong>{html.escape(str(self.error))}</strong></p>"
        return (
            f'<div style="white-space: pre-wrap">{html.escape(self.text)}</div>'
            f"<p><em>{self.outcome}, turns: {self.turns}{cost}</em></p>{reason}"
        )

    if not TYPE_CHECKING:
        __getattr__ = explain_missing_attribute

    @property
    def error(self) -> PilothouseError | None:
        """The reason why there is no answer, None on success."""
        self._is_unchecked = False
        return self._failure

    @error.setter
    def error(self, value: PilothouseError | None) -> None:
        self._failure = value

    @property
    def outcome(self) -> Outcome:
        """How the run ended. An interrupt is an outcome of its own, not a failure."""
        self._is_unchecked = False
        return self._find_outcome()

    def _find_outcome(self) -> Outcome:
        if self._failure is None:
            return "success"
        return "interrupted" if isinstance(self._failure, Interrupted) else "error"

    @property
    def is_success(self) -> bool:
        """Whether the run ended without an error."""
        return self.error is None

    def raise_for_error(self) -> Self:
        """Raise `.error` if there is one, else return this result.

        Raises:
            ResultError: the run failed; the class says how.
            Interrupted: the query was interrupted.
        """
        error = self.error
        if error is not None:
            raise error
        return self

    @property
    def output(self) -> OutputT:
        """The typed output: what `output_type` or `json_schema` asked for; None without them (see `text`).

        Raises:
            PilothouseError: an output was requested, and there is none: the error of the run, as `raise_for_error`.
        """
        output = cast("OutputT", self._output)
        if self._structured_expected and self._output is None:
            self.raise_for_error()
        return output

    @output.setter
    def output(self, value: Any) -> None:
        self._output = value

    @property
    def text(self) -> str:
        """The last text of the model.

        Of a failed or interrupted run: its last text until then, "" if none; the reason is in `error`, and the text
        of the CLI in `result.result`.
        """
        if self._failure is None:
            return (self.result.result or "") if self.result is not None else ""
        return next((text for message in reversed(self._messages) if (text := _main_text(message))), "")

    @property
    def full_text(self) -> str:
        """Text of every assistant turn, each on a line of its own, unless there is white space between them.

        Without sub-agents, and without text that the CLI writes in place of the model when the API fails.
        """
        return _join_texts(self.messages)

    @property
    def cost_usd(self) -> float | None:
        """Estimated cost of this query in US dollars, as the CLI counts it."""
        if self._usage_of_query is not None:
            return sum(float(usage.cost_usd or 0) for usage in self._usage_of_query.values())
        return self.session_cost_usd

    @property
    def session_cost_usd(self) -> float | None:
        """Estimated cost of the whole conversation so far, this query included."""
        return self.result.total_cost_usd if self.result is not None else None

    @property
    def turns(self) -> int:
        """Turns of the model, over all prompts of the query; 0 without a closing message."""
        return sum(int(answer.num_turns or 0) for answer in self._answers)

    @property
    def duration_ms(self) -> int:
        """Time from a prompt to its end, over all prompts, in milliseconds; 0 without a closing message."""
        return sum(int(answer.duration_ms or 0) for answer in self._answers)

    @property
    def session_id(self) -> str | None:
        """Id to resume the conversation with: the last one that the CLI named."""
        if self.result is not None and self.result.session_id:
            return self.result.session_id
        return next((m.session_id for m in reversed(self._messages) if m.session_id), None)

    @property
    def usage(self) -> Usage | None:
        """Tokens of the main model, over all prompts of the query."""
        return _total([answer.usage for answer in self._answers]) if self._answers else None

    @property
    def model_usage(self) -> Mapping[str, ModelUsage]:
        """Tokens and cost of this query by model."""
        if self._usage_of_query is not None:
            return self._usage_of_query
        return (self.result.model_usage or {}) if self.result is not None else {}

    @cached_property
    def _usage_of_query(self) -> Mapping[str, ModelUsage] | None:
        """What the CLI counted between the results of this query; None if it counts from the start of the query."""
        parts = [answer.model_usage_since_last_result for answer in self._answers]
        if not self._is_continuation or not parts or None in parts:
            return None
        models = dict.fromkeys(model for part in parts for model in part or ())
        return {model: _total([part[model] for part in parts if part and model in part]) for model in models}

    @property
    def cache_read_tokens(self) -> int:
        """Tokens read from the prompt cache, over all models."""
        return sum(int(usage.cache_read_input_tokens or 0) for usage in self.model_usage.values())

    @property
    def cache_creation_tokens(self) -> int:
        """Tokens written to the prompt cache, over all models."""
        return sum(int(usage.cache_creation_input_tokens or 0) for usage in self.model_usage.values())

    @property
    def permission_denials(self) -> Sequence[PermissionDenial]:
        """Tool calls that were not permitted."""
        return [denial for answer in self._answers for denial in answer.permission_denials or ()]

    @property
    def messages(self) -> list[Message]:
        """All messages of the CLI, in order.

        Raises:
            UsageError: the query was streamed and had more messages than are kept beside a stream; use `await` or
                `on_message` instead.
        """
        if self._incomplete:
            raise UsageError(
                "this query was streamed with `async for` and produced more messages than a stream keeps (memory "
                "stays bounded); to have all messages afterwards, `await` it, or pass on_message="
            )
        return self._messages

    @property
    def skipped_lines(self) -> int:
        """How many lines of the CLI's output could not be read, so that a message may be missing.

        They were too long (option `max_line_bytes`), not JSON, or not a message; each is a `LineSkippedMessage`.
        """
        return sum(message.lines for message in self._messages if isinstance(message, LineSkippedMessage))

    @property
    def assistant_messages(self) -> list[AssistantMessage]:
        """The messages of the model, in order."""
        return [m for m in self.messages if isinstance(m, AssistantMessage)]

    @property
    def tool_uses(self) -> list[ToolUseBlock]:
        """Every tool call of every turn, in order."""
        return [block for m in self.assistant_messages for block in m.tool_uses]

    @property
    def thinking(self) -> str:
        """The thinking of the model, joined, without sub-agents."""
        return "".join(m.thinking for m in self.assistant_messages if m.parent_tool_use_id is None)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values for JSON, without its messages.

        Example::

            json.dumps((await ph.query("Extract the invoice", output_type=Invoice)).to_dict())
        """
        error = self.error
        return {
            "text": self.text,
            "is_success": error is None,
            "outcome": self.outcome,
            "session_id": self.session_id,
            "cost_usd": self.cost_usd,
            "turns": self.turns,
            "duration_ms": self.duration_ms,
            "structured": self.structured,
            "usage": msgspec.to_builtins(self.usage),
            "model_usage": msgspec.to_builtins(self.model_usage),
            "permission_denials": [denial.tool_name for denial in self.permission_denials],
            "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
        }

    def validate(self) -> ValidationReport:
        """Check the stream: calls without a result, results without a call, lines skipped, no closing message."""
        from pilothouse.protocol.validator import StreamValidator  # few programs use it

        validator = StreamValidator()
        validator.track_batch(self.messages)
        return validator.report()


def essential_messages(result: QueryResult) -> list[Message]:
    """The messages that determine the text and the outcome of a result."""
    messages = result._messages  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - streamed results have no public ones
    reason_text = next((m for m in reversed(messages) if _main_text(m)), None) if result.error is not None else None
    closing = result.result or next((m for m in messages if isinstance(m, DoneMessage)), None)
    return [message for message in (reason_text, closing) if message is not None]


def _join_texts(messages: Iterable[Message]) -> str:
    parts: list[str] = []
    before: str | None = None
    for message in messages:
        text = _main_text(message)
        if not text or not isinstance(message, AssistantMessage):
            continue
        # One API response comes in several messages, and a response that was cut continues in the next.
        is_new = message.message_id != before and message.resume_reason is None
        if parts and is_new and not (parts[-1][-1].isspace() or text[0].isspace()):
            parts.append("\n")
        parts.append(text)
        before = message.message_id
    return "".join(parts)


def _main_text(message: Message) -> str:
    """The text of the main agent in a message, if the model wrote it and not the CLI."""
    if not isinstance(message, AssistantMessage) or message.parent_tool_use_id is not None:
        return ""
    return "" if message.is_api_error_message else message.text


def closing_message(messages: Iterable[Message]) -> ResultMessage | None:
    """The result of the run: the last one that answers a prompt, else the last one.

    A background task that ends after the answer wakes the model, which sends a further result.
    """
    return (_prompt_results(messages) or [None])[-1]


def _prompt_results(messages: Iterable[Message]) -> list[ResultMessage]:
    """The results that answer prompts, including repairs of the output; else the last result.

    Cost and usage by model in a result count from the start of the process, everything else from its own prompt.
    """
    results = [m for m in messages if isinstance(m, ResultMessage)]
    return [m for m in results if not m.is_woken] or results[-1:]


def _find_structured(result: ResultMessage | None, *, in_text: bool) -> Any:
    if result is None or result.structured_output is not None or not in_text:
        return None if result is None else result.structured_output
    try:
        return msgspec.json.decode(result.result or "")
    except ValueError:
        return None


_NOT_SUMMED = frozenset({"context_window", "max_output_tokens"})  # limits of a model, which do not add up


def _total(parts: Sequence[Any]) -> Any:
    """Add up numbers, field by field; of anything else, return the last value."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts):
        return sum(parts)
    there = [part for part in parts if part is not None]
    if there and all(isinstance(part, Struct) for part in there):
        names = [name for name in there[-1].__struct_fields__ if name not in _NOT_SUMMED]
        return replace(there[-1], **{name: _total([getattr(part, name) for part in there]) for name in names})
    return there[-1] if there else None
