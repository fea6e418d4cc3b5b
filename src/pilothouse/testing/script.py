"""Which answer a request gets: rules, the queue, the default, side requests.

Owns the order in which these are asked, and what was used. Knows nothing of HTTP or of the wire format.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pilothouse.testing.replies import Answer, AnswerLike, HttpError, Steps, as_answer
from pilothouse.testing.requests import RecordedRequest, SideKind

# The CLI (2.1.330) asks again after these, with fewer features or without streaming. The real API would refuse it
# again; so does the script, without using up what is meant for the next request.
LASTING = frozenset({400, 404})

Match: TypeAlias = "str | re.Pattern[str] | Callable[[RecordedRequest], object] | None"


@dataclass(slots=True, eq=False)
class Rule:
    """One rule of a script, as `ScriptedModel.on` returns it. `.used` counts the requests that it answered."""

    match: Match
    answers: tuple[AnswerLike, ...]
    sequence: bool = False
    times: int | None = None
    side: str | None = None
    name: str = ""
    used: int = 0
    positions: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def label(self) -> str:
        """How the rule is called in messages."""
        if self.name:
            return self.name
        if isinstance(self.match, re.Pattern):
            return f"on(/{self.match.pattern}/)"
        if self.match is None:
            return f"on(side={self.side!r})" if self.side else "on()"
        return f"on({self.match!r})" if isinstance(self.match, str) else f"on({_named(self.match)})"

    def matches(self, request: RecordedRequest) -> bool:
        """Whether the rule has an answer for this request."""
        if self.side != request.side or (self.times is not None and self.used >= self.times):
            return False
        if self.sequence and self.positions.get(request.session_id, 0) >= len(self.answers):
            return False
        match self.match:
            case None:
                return True
            case str():
                return self.match in request.newest_text
            case re.Pattern():
                return self.match.search(request.newest_text) is not None
            case _:
                return bool(self.match(request))

    def take(self, request: RecordedRequest, position: int | None = None) -> tuple[AnswerLike, int]:
        """Use the rule: the answer, and the position of the one after it."""
        self.used += 1
        if not self.sequence:
            return self.answers[0], 0
        at = self.positions.get(request.session_id, 0) if position is None else position
        self.positions[request.session_id] = at + 1
        return self.answers[at], at + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request is answered with, by whom, and who gets the results of its tools."""

    answer: Answer
    by: str
    rule: Rule | None = None
    next_position: int = 0


@dataclass(slots=True)
class Script:
    """Rules first, in the order in which they were added; then the queue; then the default; then a clear error."""

    rules: list[Rule] = field(default_factory=list[Rule])
    queue: deque[AnswerLike] = field(default_factory=deque["AnswerLike"])
    default: AnswerLike | None = None
    errors: list[str] = field(default_factory=list[str])
    continuations: dict[str, tuple[Rule, int]] = field(default_factory=dict[str, "tuple[Rule, int]"])
    refused: dict[tuple[str, int, str], Choice] = field(default_factory=dict[tuple[str, int, str], "Choice"])

    def add(self, match: Match, answer: AnswerLike | Steps, times: int | None, side: str | None, name: str) -> Rule:
        """Add a rule."""
        sequence = isinstance(answer, Steps)
        answers = answer.answers if isinstance(answer, Steps) else (answer,)
        rule = Rule(match, answers, sequence, times, side, name)
        self.rules.append(rule)
        return rule

    def choose(self, request: RecordedRequest, side: SideKind | None) -> Choice:
        """Decide what a request gets. Never raises: what goes wrong becomes an answer and an entry in `errors`."""
        key = (request.session_id, len(request.messages), request.newest_text)
        if key in self.refused:
            return self.refused[key]
        try:
            choice = self._choose(request, side)
        except Exception as error:  # noqa: BLE001 - the script is the user's code; its failure must reach the test
            choice = self._refuse(f"the script failed on this request: {type(error).__name__}: {error}")
        if request.session_id and isinstance(choice.answer, HttpError) and choice.answer.status in LASTING:
            self.refused[key] = choice
        return choice

    def expect_results(self, tool_ids: tuple[str, ...], choice: Choice) -> None:
        """Remember that the results of these calls belong to the next step of the rule that made them."""
        if choice.rule is not None and choice.next_position < len(choice.rule.answers):
            self.continuations.update(dict.fromkeys(tool_ids, (choice.rule, choice.next_position)))

    def _choose(self, request: RecordedRequest, side: SideKind | None) -> Choice:
        for result in request.tool_results:
            if result.tool_use_id in self.continuations:
                rule, position = self.continuations[result.tool_use_id]
                # A retry of the same request must find the step after the one that failed.
                position = max(position, rule.positions.get(request.session_id, 0))
                if position < len(rule.answers):
                    return self._use(rule, request, position)
        for rule in self.rules:
            if rule.matches(request):
                return self._use(rule, request, None)
        if side is not None:
            return Choice(as_answer(side.text), f"side {side.name}")
        if self.queue:
            return Choice(_resolve(self.queue.popleft(), request), "queue")
        if self.default is not None:
            return Choice(_resolve(self.default, request), "default")
        return self._refuse(
            f"the scripted model has no reply left for this request; newest text: {request.newest_text[:200]!r}"
        )

    def _use(self, rule: Rule, request: RecordedRequest, position: int | None) -> Choice:
        value, following = rule.take(request, position)
        return Choice(_resolve(value, request), rule.label, rule if rule.sequence else None, following)

    def _refuse(self, message: str) -> Choice:
        self.errors.append(message)
        return Choice(HttpError(400, "invalid_request_error", f"pilothouse ScriptedModel: {message}"), "nothing")


def _named(function: Callable[..., object]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} at line {code.co_firstlineno}" if code is not None else name


def _resolve(value: AnswerLike, request: RecordedRequest) -> Answer:
    return as_answer(value(request) if callable(value) else value)
