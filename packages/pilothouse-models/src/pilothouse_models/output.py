"""Structured output of one request: the call that carries it, its validation, and when the model is asked again.

The model gives the output as a call in the text protocol, so that it works together with tools of the request, and no
part of the answer has to be cut out of prose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pilothouse.client import OutputSchema
from pilothouse.errors import StructuredOutputError
from pilothouse.events import TextDelta, TextRetracted, ToolCall, ToolCallDelta, ToolCallStarted
from pilothouse.support import to_json_values
from pilothouse_models.json_text import json_text

_DESCRIPTION: Final = "Takes your final answer. Call it once, when you need no other tool."
OUTPUT_DEMAND: Final = (
    f"Give your final answer by calling the tool {OutputSchema.TOOL}, once and alone. "
    "Text outside of that call is not read."
)
_REMINDER: Final = (
    f"Your answer was not accepted: {{problem}}. Call the tool {OutputSchema.TOOL} with the whole answer."
)
_NOT_ALONE: Final = f"{OutputSchema.TOOL} was called together with other tools; call it alone, after their results"
_NO_OUTPUT: Final = "the answer has no structured output in it"


class AnswerOutput:
    """The structured output of one request.

    Args:
        expected: what the output must fit.
        repairs: how often the model may be asked again.

    Attributes:
        value: the output, converted to its type; None before it is accepted.
        is_accepted: whether the output was accepted.
        can_repair: whether the model may be asked again.
    """

    def __init__(self, expected: OutputSchema, repairs: int) -> None:
        self.value: Any = None
        self.is_accepted = False
        self._expected = expected
        self._repairs = repairs
        self._failures = 0
        self._error = StructuredOutputError(_NO_OUTPUT)
        self._call_ids: set[str] = set()

    @property
    def declaration(self) -> Mapping[str, Any]:
        """The tool that takes the output, as the model sees it."""
        return {"name": OutputSchema.TOOL, "description": _DESCRIPTION, "input_schema": self._expected.schema}

    @property
    def can_repair(self) -> bool:
        """Whether the model may be asked again."""
        return self._failures <= self._repairs

    @property
    def error(self) -> StructuredOutputError:
        """Why there is no output."""
        self._error.attempts = self._failures
        return self._error

    @property
    def reminder(self) -> list[dict[str, Any]]:
        """The user message that asks for the output again."""
        return [{"type": "text", "text": _REMINDER.format(problem=self._error)}]

    def filter_events(self, events: Iterable[Any]) -> Iterator[Any]:
        """Yield the events without text, and without the output's call: the text of the answer is its JSON alone."""
        for event in events:
            match event:
                case TextDelta():
                    continue
                case ToolCallStarted(tool_use=use) if use.name == OutputSchema.TOOL:
                    self._call_ids.add(use.id)
                case ToolCallDelta(id=call_id) if call_id in self._call_ids:
                    continue
                case TextRetracted():
                    kept = tuple(each for each in event.call_ids if each not in self._call_ids)
                    if event.thinking or kept:
                        yield replace(event, text="", call_ids=kept)
                case _:
                    yield event

    def accept(self, text: str, calls: Sequence[ToolCall]) -> tuple[str, tuple[ToolCall, ...]]:
        """Take the output from an answer of the model.

        Args:
            text: the text of the answer; JSON that fits is accepted, too.
            calls: the calls of the answer.

        Returns:
            The output as JSON and no calls; else "" and the calls, those of the output with the reason as their error.
        """
        outputs = [call for call in calls if call.name == OutputSchema.TOOL]
        if calls and not outputs:
            return "", tuple(calls)
        problem = next((call.error for call in outputs if call.error is not None), None)
        if problem is None and len(outputs) < len(calls):
            problem = _NOT_ALONE
        given = outputs[-1].input if outputs else OutputSchema.find_json(text)
        if problem is not None:
            self._error = StructuredOutputError(problem, raw=text)
        elif given is None:
            self._error = StructuredOutputError(_NO_OUTPUT, raw=text)
        else:
            try:
                self.value, plain = self._expected.validate(given)
            except StructuredOutputError as error:
                self._error = error
            else:
                self.is_accepted = True
                return json_text(to_json_values(plain)), ()
        self._failures += 1
        return "", tuple(
            replace(call, error=str(self._error)) if call.name == OutputSchema.TOOL and call.error is None else call
            for call in calls
        )
