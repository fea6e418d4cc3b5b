"""Tools that are about the person: a question to them, and a plan for them to approve.

Owns what the model is told of the two and of their outcome. The asking itself is a permission request, as with the CLI:
what the person said comes back in the input. They are offered where there is somebody to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pilothouse.native.shapes import JSON, items, mapping
from pilothouse.native.tools.base import BuiltinTool, ToolOutcome, Workplace

QUESTION: Final = "AskUserQuestion"
PLAN: Final = "ExitPlanMode"

_TEXT: Final = {"type": "string"}
_OPTION: Final = {
    "type": "object",
    "properties": {"label": _TEXT, "description": _TEXT},
    "required": ["label", "description"],
}
_ONE: Final = {
    "type": "object",
    "properties": {
        "question": _TEXT,
        "header": {"type": "string", "description": "One or two words that stand for the question"},
        "options": {"type": "array", "items": _OPTION, "minItems": 2, "maxItems": 4},
        "multiSelect": {"type": "boolean", "description": "Several options may be chosen"},
    },
    "required": ["question", "header", "options", "multiSelect"],
}


class Question:
    """Asks the person."""

    name = QUESTION
    description = (
        "Ask the user when you need a decision or a fact that only they have. Give options that differ in substance; "
        "they may always answer in words of their own."
    )
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"questions": {"type": "array", "items": _ONE, "minItems": 1, "maxItems": 4}},
        "required": ["questions"],
    }
    read_only = True

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
        """Tell the model what the person said; it stands in `answers`."""
        answers = mapping(tool_input.get("answers"))
        result: JSON = {"questions": tool_input.get("questions"), "answers": answers}
        if not answers:
            return ToolOutcome("The user gave no answer.", result=result)
        told = "\n".join(f"- {question} {_shown(answer)}" for question, answer in answers.items())
        return ToolOutcome(f"The user answered:\n{told}", result=result)


class Plan:
    """Shows the person a plan."""

    name = PLAN
    description = (
        "When you have planned in plan mode and are ready to act: show the user the plan and ask for their approval. "
        "Not for questions, and not for work that changes nothing."
    )
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"plan": {"type": "string", "description": "The plan, in Markdown"}},
        "required": ["plan"],
    }
    read_only = False

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
        """It was approved."""
        plan = tool_input.get("plan")
        return ToolOutcome("The user approved the plan. Plan mode is over: carry it out.", result={"plan": plan})


INTERACTIVE: Final[Mapping[str, BuiltinTool]] = {QUESTION: Question(), PLAN: Plan()}


def _shown(answer: Any) -> str:
    return ", ".join(map(str, items(answer))) if isinstance(answer, list) else str(answer)
