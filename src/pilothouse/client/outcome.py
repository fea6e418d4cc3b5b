"""From a result that says it failed to one typed error. Pure; the rules are tables, read from top to bottom.

The CLI says what went wrong in four places (measured on 2.1.330): the HTTP status of the API, the `error` of the last
assistant message, `terminal_reason`, and the subtype of the result. API errors arrive as `subtype: "success"` with
`is_error` set, so the subtype alone says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pilothouse.errors import (
    AuthenticationError,
    BudgetError,
    ContextOverflowError,
    ExecutionError,
    Interrupted,
    InvalidModelError,
    MaxTurnsError,
    OverloadedError,
    PilothouseError,
    QuotaError,
    RateLimitError,
    RefusalError,
    ResultError,
    SessionNotFoundError,
    StructuredOutputError,
)
from pilothouse.messages import AssistantMessage, Message, RateLimitEvent, ResultMessage

INTERRUPTED_REASONS = frozenset({"aborted_streaming", "aborted_tools"})

# A usage limit is told as a 429 or as plain text; waiting a moment does not help against it.
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
_BY_STATUS: dict[int, type[ResultError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: InvalidModelError,
    413: ContextOverflowError,
    429: RateLimitError,
    529: OverloadedError,
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

_FOR_A_TERMINAL = " · Please run /login"
"""What the CLI adds for people who sit before it."""

# What to do next, appended to what the CLI said.
_ADVICE: dict[type[ResultError], str] = {
    AuthenticationError: "set ANTHROPIC_API_KEY, pass api_key=…, or log in by running `claude` once",
    InvalidModelError: "check the option model",
    MaxTurnsError: "raise max_turns, or resume the session with its session_id",
    BudgetError: "raise max_budget_usd, or resume the session with its session_id",
    ContextOverflowError: "shorten the prompt or the conversation",
    RateLimitError: "send less at once, or try again later",
    OverloadedError: "try again in a moment",
    SessionNotFoundError: "check the id; sessions are kept under HOME, or under CLAUDE_CONFIG_DIR, of the child",
    QuotaError: "wait until the limit resets, or use another account or key",
}


def result_error(result: ResultMessage, messages: Iterable[Message] = ()) -> PilothouseError | None:
    """The typed error of a failed or interrupted result; None when it succeeded.

    Args:
        result: the closing message.
        messages: what came before it; the reset time of a limit and the cause of an API error stand there.
    """
    if result.terminal_reason in INTERRUPTED_REASONS:
        return Interrupted("the query was interrupted", result=result)
    if not result.is_error:
        return None
    spoken, limit = _context(messages)
    text = failure_text(result)
    kind = _kind(result, spoken, text)
    advice = _ADVICE.get(kind)
    said = text.replace(_FOR_A_TERMINAL, "")
    message = f"{said} ({advice})" if advice else said
    details: dict[str, Any] = {"result": result, "api_error_status": result.api_error_status}
    if issubclass(kind, RateLimitError):
        details["resets_at"] = limit
    return kind(message, **details)


def refusal(result: ResultMessage) -> Exception:
    """The error of a result in place of a handshake: `resume` of an unknown id."""
    return result_error(result) or PilothouseError("the CLI gave a result before the handshake")


def failure_text(result: ResultMessage) -> str:
    """What the CLI said went wrong, in one text."""
    # `[ede_diagnostic]` lines are notes of the CLI to itself; shown only when there is nothing else.
    errors = [text for text in result.errors or () if not text.startswith("[ede_diagnostic]")]
    if errors:
        return "; ".join(errors)
    if result.result:
        return result.result
    reason = result.terminal_reason or result.subtype or "no reason given"
    return f"the run failed: {reason}"


def _kind(result: ResultMessage, spoken: str | None, text: str) -> type[ResultError]:
    lowered = text.lower()
    rules: tuple[Callable[[], type[ResultError] | None], ...] = (
        lambda: _BY_SUBTYPE.get(result.subtype or ""),
        lambda: next((kind for parts, kind in _BY_TEXT if any(part in lowered for part in parts)), None),
        lambda: _BY_REASON.get(result.terminal_reason or ""),
        lambda: _BY_STATUS.get(result.api_error_status or 0),
        lambda: _BY_MESSAGE_ERROR.get(spoken or ""),
        lambda: RefusalError if result.stop_reason == "refusal" else None,
    )
    for rule in rules:
        if kind := rule():
            return kind
    return ExecutionError


def _context(messages: Iterable[Message]) -> tuple[str | None, float | None]:
    spoken: str | None = None
    limit: float | None = None
    for message in messages:
        if isinstance(message, AssistantMessage):
            spoken = message.error or spoken
        elif isinstance(message, RateLimitEvent):
            limit = message.rate_limit_info.resets_at or limit
    return spoken, limit
