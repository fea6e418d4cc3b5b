"""Retries a query that the API refused, and waits for limits: the options `retry` and `on_usage_limit`.

Owns which failures are retried, when, and with which prompt. Keeps no reference to the query, so that a dropped query
can end.

`SharedRateLimits` are the limits of the API that all queries and sessions of an agent share: until when they should
send nothing, and the order in which waiting queries continue. It knows no event loop: queries of several loops and
threads share it. So all times are wall-clock times, which are also what the API reports.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from threading import Lock
from typing import Literal
from uuid import uuid4

import anyio
from msgspec import Struct

from pilothouse.client.middleware import Middleware, append_cause
from pilothouse.client.prompt import make_prompt
from pilothouse.client.result import CONNECTION_FAILED, make_result_error
from pilothouse.engine import NextPrompt, PromptMessage, Prompts, QueryRun
from pilothouse.engine.failures import make_note
from pilothouse.errors import (
    ExecutionError,
    OptionsError,
    OverloadedError,
    PilothouseError,
    QuotaError,
    RateLimitError,
    ResultError,
)
from pilothouse.instrumentation import ScheduledRetry
from pilothouse.messages import ApiRetryMessage, AssistantMessage, Message, RateLimitEvent, ResultMessage, SystemMessage
from pilothouse.options import Options

log = logging.getLogger("pilothouse")

RETRY_SCHEDULED = "retry_scheduled"
"""Subtype of the system message that announces a retry, before the wait."""
LIMIT_WAIT = "limit_wait"
"""Subtype of the system message that announces a wait for a limit."""
CONTINUE_PROMPT = (
    "The connection to the model failed in the middle of your work. Everything up to here has been kept: go on from "
    "there, and do nothing again that is done."
)
"""The prompt of a retry after the model had begun to answer."""

ANSWER_PROMPT = "The connection to the model failed before you could answer. Answer the message before this one."
"""The prompt of a retry in place of a long prompt: the CLI keeps that, and each copy of it would be paid for."""
REPEATED_BYTES = 16 * 1024  # a prompt up to this size is repeated

AFTER_RESET_SECONDS = 4.0  # limits do not reset to the second, and clocks differ; a random part of this is waited
MAX_LIMIT_WAITS = 8  # for one query, so that a limit whose reset is always just past cannot loop forever
ERROR_CHARS = 500  # of an error in a system message

RATE_LIMITED_STATUS = 429
# Limits of one model; all others are limits of the account.
ONE_MODEL_LIMITS = ("seven_day_opus", "seven_day_sonnet")


RetryAction = Literal["resend", "resume", "hold"]


class RetryDelay(Struct, frozen=True):
    """A retry that is due at `until`, in Unix seconds."""

    until: float
    reason: str
    note: SystemMessage


class QueryRetry(Middleware):
    """Retries one query.

    Args:
        options: those of the query.
        rate_limits: those of its agent.

    Attributes:
        errors: of the failed attempts, oldest first.
        report: called with each retry that is scheduled, if somebody observes the query. Must not raise.
    """

    def __init__(self, options: Options, rate_limits: SharedRateLimits | None) -> None:
        if options.prompt_via != "stdin":
            name = "retry" if options.retry is not None else "on_usage_limit"
            raise OptionsError(f"option {name!r} needs prompt_via='stdin': the argv form sends one prompt", option=name)
        self._policy = options.retry
        self._waits_for_limits = options.on_usage_limit == "wait"
        self._max_wait = options.usage_limit_ceiling
        self._rate_limits = rate_limits or SharedRateLimits()
        self._rate_limit_key = RateLimitKey.from_options(options)
        self._run: QueryRun | None = None
        self._prompt: PromptMessage | None = None  # what to repeat, as long as the model has not answered it
        self._is_answering = False  # the model has sent something since the last successful result
        self._session_id: str | None = None
        self._failures: list[Message] = []  # messages that explain a failure of the current turn
        self._last_failures: list[Message] = []
        self._tries = 0
        self._limit_waits = 0
        self._waited = 0.0  # seconds, for usage limits
        self.errors: list[PilothouseError] = []
        self.report: Callable[[ScheduledRetry], object] | None = None

    # Called by the query.

    def prepare_prompts(self, prompts: Prompts) -> Prompts:
        """Return `prompts`, and keep the last one that was sent."""
        if isinstance(prompts, AsyncGenerator):
            return self._track_prompts(prompts)
        self._prompt = prompts[-1] if prompts else None
        return prompts

    async def _track_prompts(self, prompts: AsyncGenerator[PromptMessage, None]) -> AsyncGenerator[PromptMessage, None]:
        async with aclosing(prompts):
            async for prompt in prompts:
                self._prompt = prompt
                yield prompt

    def on_start(self, run: QueryRun) -> None:
        """Let the run wait while a limit holds, and report waits to its consumers."""
        run.admission = self.wait_admitted
        self._run = run

    # Called by the engine.

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Inspect a batch on its way to the consumer."""
        for message in batch:
            self._track(message)
        return batch

    def _track(self, message: Message) -> None:
        self._session_id = message.session_id or self._session_id
        if isinstance(message, AssistantMessage):
            if message.is_api_error_message:
                self._failures.append(message)
            else:
                self._is_answering = True  # from here on a retry continues, and never begins again
        elif isinstance(message, RateLimitEvent):
            self._failures.append(message)
        elif isinstance(message, ApiRetryMessage):
            if (
                message.error_status == RATE_LIMITED_STATUS
            ):  # the CLI waits; other queries of the agent would meet the same limit
                self._rate_limits.block("rate_limit", self._rate_limit_key, time.time() + message.retry_delay_ms / 1000)
        elif isinstance(message, ResultMessage) and not message.is_woken:
            self._last_failures, self._failures = self._failures, []
            self._is_answering = self._is_answering and message.is_error

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Retry after a wait, if `result` is a failure that may pass."""
        wait = self._schedule_retry(result)
        if wait is None:
            self._prompt = None  # later prompts may contain results of tools, which are sent once
            return None
        self._send_note(wait.note)
        self._report_wait("resume" if self._must_resume else "resend", wait.until, wait.reason, self.errors[-1])
        await sleep_until_time(wait.until)
        return NextPrompt(self._make_retry_prompt())

    async def wait_admitted(self) -> None:
        """Wait while a limit holds, if this query would also wait for a limit of its own."""
        reported_until: float | None = None
        while (held := self._find_block()) is not None:
            limit, until = held
            if reported_until != until:
                reported_until = until
                self._send_note(self._log_limit_wait(limit, until, "another query of the agent has reached it"))
                self._report_wait("hold", until, limit)
            moment = until + self._rate_limits.next_delay()
            if limit == "usage_limit":
                self._waited += max(0.0, moment - time.time())
            await sleep_until_time(moment)

    def _find_block(self) -> tuple[LimitKind, float] | None:
        until = self._rate_limits.blocked_until("usage_limit", self._rate_limit_key)
        if until is not None and self._may_wait_until(until):
            return "usage_limit", until
        policy, until = self._policy, self._rate_limits.blocked_until("rate_limit", self._rate_limit_key)
        if until is None or policy is None or "rate_limit" not in policy.on:
            return None
        return ("rate_limit", until) if until - time.time() <= policy.max_delay else None

    # Which failures are retried, and when.

    def _schedule_retry(self, result: ResultMessage) -> RetryDelay | None:
        """Count another attempt, and hold up other queries that would meet the same limit."""
        error = make_result_error(result, self._last_failures)
        if not isinstance(error, ResultError):
            return None
        resets_at = self._find_reset()
        reason = retry_reason(error, rejected=resets_at is not None)
        if reason == "usage_limit":
            wait = None if resets_at is None else self._schedule_after_reset(error, resets_at)
        else:
            wait = self._schedule_after_backoff(error, reason)
        if wait is not None:
            if self.errors:
                error.__cause__ = self.errors[-1]
            self.errors.append(error)
            log.info("%s; retry in %.1f s", error, wait.until - time.time())
        return wait

    def _find_reset(self) -> float | None:
        """When the limit resets that rejected the last turn."""
        for message in reversed(self._last_failures):
            if isinstance(message, RateLimitEvent) and message.rate_limit_info.status == "rejected":
                return message.rate_limit_info.resets_at
        return None

    def _schedule_after_reset(self, error: ResultError, resets_at: float) -> RetryDelay | None:
        key = self._rate_limit_key if self._is_of_one_model() else self._rate_limit_key.whole_account
        if not self._may_wait_until(resets_at) or self._limit_waits >= MAX_LIMIT_WAITS:
            self._rate_limits.block("usage_limit", key, resets_at)
            return None
        self._limit_waits += 1
        now = time.time()
        until = max(resets_at, now) + AFTER_RESET_SECONDS * (1 + _random_fraction()) / 2
        self._rate_limits.block("usage_limit", key, until)  # the first query to meet it is the first to retry
        self._waited += until - now
        return RetryDelay(until, "usage_limit", self._log_limit_wait("usage_limit", until, str(error)))

    def _is_of_one_model(self) -> bool:
        events = [m for m in self._last_failures if isinstance(m, RateLimitEvent)]
        return bool(events) and events[-1].rate_limit_info.rate_limit_type in ONE_MODEL_LIMITS

    def _may_wait_until(self, until: float) -> bool:
        return self._waits_for_limits and self._waited + until - time.time() <= self._max_wait

    def _schedule_after_backoff(self, error: ResultError, reason: str | None) -> RetryDelay | None:
        policy = self._policy
        if policy is None or reason not in policy.on or self._tries >= policy.attempts:
            return None
        self._tries += 1
        delay = policy.delay(self._tries, _random_fraction())
        until = time.time() + delay
        if reason == "rate_limit":
            self._rate_limits.block("rate_limit", self._rate_limit_key, until)
        facts = {"attempt": self._tries, "of": policy.attempts, "delay": round(delay, 3), "reason": reason}
        facts |= {"error": str(error)[:ERROR_CHARS], "error_status": error.api_error_status}
        return RetryDelay(until, reason, make_note(RETRY_SCHEDULED, self._session_id, facts))

    def _log_limit_wait(self, limit: LimitKind, until: float, error_text: str) -> SystemMessage:
        """Log a wait, and return the note about it."""
        seconds = max(0.0, until - time.time())
        facts = {"until": until, "seconds": round(seconds, 3), "limit": limit, "error": error_text[:ERROR_CHARS]}
        log.info("waiting %.0f s for a %s", seconds, limit.replace("_", " "))
        return make_note(LIMIT_WAIT, self._session_id, facts)

    def _send_note(self, note: SystemMessage) -> None:
        if self._run is not None:
            self._run.put_note(note)

    def _report_wait(
        self, action: RetryAction, until: float, reason: str, error: PilothouseError | None = None
    ) -> None:
        if self.report is not None:
            attempt = None if error is None or reason == "usage_limit" else self._tries
            delay = max(0.0, until - time.time())
            self.report(ScheduledRetry(action=action, reason=reason, delay=delay, attempt=attempt, error=error))

    @property
    def _must_resume(self) -> bool:
        """Whether the model has begun to answer, so that a retry has to continue instead of beginning again."""
        return self._prompt is None or self._is_answering

    def _make_retry_prompt(self) -> PromptMessage:
        before = self._prompt
        if before is None or self._must_resume:
            return make_prompt(CONTINUE_PROMPT, verbatim=True)
        if len(before.data) > REPEATED_BYTES:
            return make_prompt(ANSWER_PROMPT, verbatim=True)
        # The same text with a new uuid: results name the prompt that they answer.
        key = str(uuid4())
        return PromptMessage(key, json.dumps(json.loads(before.data) | {"uuid": key}).encode() + b"\n")

    # The end of the query.

    def explain(self, error: BaseException) -> None:
        """Chain the errors of earlier attempts to `error`."""
        if self.errors:
            append_cause(error, self.errors[-1])


def _random_fraction() -> float:
    return random.random()  # noqa: S311 - not a secret


def retry_reason(error: BaseException, *, rejected: bool = False) -> str | None:
    """Classify a failure in the words of `RetryPolicy.on`, or "usage_limit"; None: it is permanent.

    Args:
        error: why a query failed.
        rejected: whether the API reported a limit that is used up.
    """
    if isinstance(error, QuotaError) or (isinstance(error, RateLimitError) and rejected):
        return "usage_limit"
    if isinstance(error, RateLimitError):
        return "rate_limit"
    if isinstance(error, OverloadedError):
        return "overloaded"
    if type(error) is not ExecutionError:
        return None
    if isinstance(error.result, ResultMessage) and error.result.api_error == CONNECTION_FAILED:
        return "network"
    return "server" if (error.api_error_status or 0) >= 500 else None


LimitKind = Literal["usage_limit", "rate_limit"]

MAX_SLEEP_SECONDS = 30.0  # longest sleep: notices a suspended machine or a changed clock
STAGGER_SECONDS = 0.25  # between two queries that continue after a limit

_ACCOUNT = ("api_key", "auth_token", "oauth_token", "base_url", "provider", "config_dir", "env", "transport", "user")


class RateLimitKey(Struct, frozen=True):
    """The account and model that a limit belongs to.

    Args:
        account: a hash of the settings that identify the account; not the key.
        model: as requested; None: the CLI's choice, or all models.
    """

    account: int
    model: str | None

    @classmethod
    def from_options(cls, options: Options) -> RateLimitKey:
        """Make the key of a query with these settings."""
        values = options.as_dict()
        model = options.model
        return cls(hash(tuple(repr(values.get(name)) for name in _ACCOUNT)), model)

    @property
    def whole_account(self) -> RateLimitKey:
        """The key of the account, for all models."""
        return RateLimitKey(self.account, None)


class SharedRateLimits:
    """Until when limits hold, by key. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocked: dict[tuple[LimitKind, RateLimitKey], float] = {}
        self._waiter_count = 0

    def block(self, limit: LimitKind, place: RateLimitKey, until: float) -> None:
        """Block `place` until `until`, in Unix seconds."""
        with self._lock:
            now = time.time()
            self._blocked = {key: moment for key, moment in self._blocked.items() if moment > now}
            if not self._blocked:
                self._waiter_count = 0
            key = (limit, place)
            self._blocked[key] = max(until, self._blocked.get(key, 0.0))

    def blocked_until(self, limit: LimitKind, key: RateLimitKey) -> float | None:
        """Until when `key` is blocked, in Unix seconds; None if it is not."""
        with self._lock:
            moment = max(self._blocked.get((limit, one), 0.0) for one in (key, key.whole_account))
        return moment if moment > time.time() else None

    def next_delay(self) -> float:
        """Seconds to wait after the end of a limit, so that waiting queries continue one by one."""
        with self._lock:
            self._waiter_count += 1
            return (self._waiter_count - random.random()) * STAGGER_SECONDS  # noqa: S311 - not a secret


async def sleep_until_time(moment: float) -> None:
    """Sleep until a Unix time."""
    while (left := moment - time.time()) > 0:  # noqa: ASYNC110 - there is no event for the time of day
        await anyio.sleep(min(left, MAX_SLEEP_SECONDS))
