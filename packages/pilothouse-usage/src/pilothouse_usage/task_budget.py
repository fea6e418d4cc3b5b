"""`TaskBudget`: stops a sub-agent that uses too much; the query goes on.

Owns the limits and what happens at them. What a sub-agent has used is counted as `breakdown` counts it, from its
messages and from the totals of the CLI, which are asked for after every reply.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import Middleware
from pilothouse.errors import ControlError, OptionsError, PilothouseError
from pilothouse.messages import (
    AssistantMessage,
    InitMessage,
    Message,
    ModelUsage,
    TaskNotificationMessage,
    TaskStartedMessage,
    UserMessage,
)
from pilothouse.support import spawn
from pilothouse_usage.ledger import AGENT_TASK, NANOS, TOKEN_FIELDS, AgentFacts, Ledger, divide

log = logging.getLogger("pilothouse.usage")

_REPLY_SIGNS: Final = (InitMessage, AssistantMessage, UserMessage, TaskNotificationMessage)
"""Messages after which the CLI may have counted another reply. The first one comes before any."""
_NO_SIDE_EFFECTS: Final[Mapping[str, Any]] = {"skip_behaviors": True, "detached": True}
"""The CLI searches no transcripts for this answer, and lets no other request wait for it."""


class TaskBudget:
    """A limit for each sub-agent, for the option `middleware`: at the limit its task is stopped; the query goes on.

    A task is stopped after the reply with which it passes the limit, so it may exceed it by that reply and by a request
    that is under way. The model is told why, and one warning is logged. Tasks of a session that run on after the answer
    are watched only with `until="idle"`.

    What a sub-agent uses is partly estimated when several run at once, see `breakdown`. The limit counts for each task
    of its own: the main agent may start another one.

    Args:
        usd: US dollars of each task, as the CLI estimates them; or a mapping from types of sub-agents to that. Types
            that are not in it have no limit.
        tokens: the same in tokens, of input and output, those of the cache included.

    Raises:
        OptionsError: there is no limit, or one is not a number above 0.

    Example::

        agent = ph.Agent(middleware=[TaskBudget(usd=0.50)])
        agent = ph.Agent(middleware=[TaskBudget({"researcher": 0.25}, tokens=200_000)])
    """

    def __init__(
        self, usd: float | Mapping[str, float] | None = None, *, tokens: int | Mapping[str, int] | None = None
    ) -> None:
        self._usd, self._tokens = _read_limits("usd", usd), _read_limits("tokens", tokens)
        if not self._usd and not self._tokens:
            raise OptionsError("TaskBudget needs a limit: usd, tokens, or both", option="middleware")

    def __call__(self) -> Middleware:
        """Return the middleware of one query."""
        return _TaskWatch(self)

    def __repr__(self) -> str:
        return f"TaskBudget({dict(self._usd)}, tokens={dict(self._tokens)})"

    def find_excess(self, kind: str | None, tokens: int, usd: float) -> str | None:
        """Return what a sub-agent of this type used if that is more than its budget, and the budget, as text."""
        limit = self._usd.get(kind or "", self._usd.get(_ANY))
        if limit is not None and usd > limit:
            return f"${usd:.4f}, its budget is ${limit:.4f}"
        limit = self._tokens.get(kind or "", self._tokens.get(_ANY))
        return f"{tokens:,} tokens, its budget is {limit:,}" if limit is not None and tokens > limit else None


_ANY = "*"
_TYPE_NAME: Final = re.compile(r"[\w.:-]{1,60}", re.ASCII)


_UNITS: Final = {"usd": "US dollars", "tokens": "a whole number of tokens"}


def _read_limits(name: str, given: Any) -> Mapping[str, Any]:
    limits = cast("Mapping[Any, Any]", given) if isinstance(given, Mapping) else {} if given is None else {_ANY: given}
    types = (int,) if name == "tokens" else (int, float)
    for kind, limit in limits.items():
        if not (isinstance(kind, str) and type(limit) in types and limit > 0):
            text = f"expected {_UNITS[name]} above 0, or a mapping of sub-agent types to them, got {given!r:.80}"
            raise OptionsError(f"TaskBudget: {name}: {text}", option="middleware")
    return dict(limits)


class _UsageOfChild(Struct, frozen=True):
    model_usage: dict[str, ModelUsage]


class _UsageAnswer(Struct, frozen=True):
    session: _UsageOfChild


class _TaskWatch(Middleware):
    """Watches the sub-agents of one query."""

    def __init__(self, budget: TaskBudget) -> None:
        self._budget = budget
        self._ledger = Ledger()
        self._running: dict[str, str] = {}  # ids of tasks, by the calls that started them
        self._told_before: Mapping[str, ModelUsage] | None = None  # what the child had used before the query
        self._is_due = self._is_asking = self._is_refused = False
        self._run: Any = None

    def on_start(self, run: Any) -> None:
        self._run = run
        run.keeps_input_open = True  # to stop tasks that run on after the answer

    def on_messages(self, batch: list[Message]) -> list[Message]:
        for message in batch:
            self._ledger.track(message)
            if isinstance(message, TaskStartedMessage) and message.task_type == AGENT_TASK:
                if message.tool_use_id and message.task_id:
                    self._running[message.tool_use_id] = message.task_id
            elif isinstance(message, TaskNotificationMessage):
                self._running.pop(message.tool_use_id or "", None)
        if any(isinstance(message, _REPLY_SIGNS) for message in batch):
            self._is_due = True
            if not self._is_asking and not self._is_refused:
                self._is_asking = True
                spawn(self._ask, "pilothouse task budget")
        return batch

    async def _ask(self) -> None:
        """Ask the child for its totals, until no reply has come since."""
        try:
            while self._is_due:
                self._is_due = False
                answer = await self._run.request("get_usage", _NO_SIDE_EFFECTS)
                self._check(msgspec.convert(answer, _UsageAnswer).session.model_usage)
        except (ControlError, msgspec.ValidationError) as error:
            self._is_refused = True
            log.warning("TaskBudget stops nothing, because this Claude Code does not give its totals (%s)", error)
        except PilothouseError:
            pass  # the child is gone, and whoever waits for it is told
        finally:
            self._is_asking = False

    def _check(self, totals: Mapping[str, ModelUsage]) -> None:
        if self._told_before is None:
            self._told_before = totals
            return
        used: dict[str | None, tuple[int, int]] = {}
        for share in divide(self._ledger.open, _find_growth(totals, self._told_before)):
            if share.reply is not None:
                tokens, nanos = used.get(share.reply.agent, (0, 0))
                used[share.reply.agent] = tokens + sum(share.counts), nanos + share.nanos
        for call in [*self._running]:
            tokens, nanos = used.get(call, (0, 0))
            agent = self._ledger.agents[call]
            excess = self._budget.find_excess(agent.type, tokens, nanos / NANOS)
            if excess is not None:
                spawn(partial(self._stop, self._running.pop(call), agent, excess), "pilothouse task budget")

    async def _stop(self, task_id: str, agent: AgentFacts, excess: str) -> None:
        # Told in the voice of the user, and logged, so without words of a model: the description of the task is one's.
        kind = agent.type if agent.type and _TYPE_NAME.fullmatch(agent.type) else "unnamed"
        log.warning("the %s sub-agent (task %s) was stopped: it used %s", kind, task_id, excess)
        words = (
            # The CLI itself only says that the user has interrupted the call.
            f"The {kind} sub-agent (task {task_id}) was stopped by its budget, not by the user: it used {excess}. "
            "Go on without it, with what you know."
        )
        for act in (
            lambda: self._run.steer(self.make_next_prompt(words).prompt, is_returnable=True),
            lambda: self._run.request("stop_task", {"task_id": task_id}),
        ):
            try:
                await act()
            except PilothouseError as error:
                log.warning("the task %s over its budget may not have been stopped: %s", task_id, error)


def _find_growth(totals: Mapping[str, ModelUsage], before: Mapping[str, ModelUsage]) -> dict[str, ModelUsage]:
    """Return what has been used since."""
    grown: dict[str, ModelUsage] = {}
    for name, now in totals.items():
        old = before.get(name, ModelUsage())
        changes = {field: getattr(now, field) - getattr(old, field) for field in (*TOKEN_FIELDS, "cost_usd")}
        grown[name] = replace(now, **changes)
    return grown
