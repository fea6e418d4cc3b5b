"""Tools that change only the session: `TodoWrite`, `AskUserQuestion` and `ExitPlanMode`.

The last two ask the user. Their question is a permission request, as in the CLI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pilothouse_native.tools.base import BuiltinSpec, BuiltinTool, ToolOutput, Workplace, make_property, make_schema
from pilothouse_native.wire import JsonObject, as_list, as_object


async def _run_todo_write(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    old, new = workplace.todos, list(tool_input["todos"])
    # A completed list is cleared.
    workplace.todos = [] if all(each.get("status") == "completed" for each in new) else new
    result = {"oldTodos": old, "newTodos": new}
    return ToolOutput("The list is noted. Keep it up to date while you work on it.", result=result)


_TODO_SCHEMA = {
    "type": "object",
    "properties": {
        "content": make_property("string", "What there is to do", minLength=1),
        "status": make_property("string", "How far it is", enum=["pending", "in_progress", "completed"]),
        "activeForm": make_property("string", "The same as something that goes on", minLength=1),
    },
    "required": ["content", "status", "activeForm"],
    "additionalProperties": False,
}
TODO_WRITE = BuiltinSpec(
    "TodoWrite",
    "Keeps a list of what there is to do in a task of several steps. Each call replaces the whole list.",
    make_schema({"todos": {"type": "array", "description": "The whole list", "items": _TODO_SCHEMA}}, "todos"),
    _run_todo_write,
)


ASK_USER_QUESTION: Final = "AskUserQuestion"
EXIT_PLAN_MODE: Final = "ExitPlanMode"

_OPTION_SCHEMA: Final = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "description": {"type": "string"}},
    "required": ["label", "description"],
}
_QUESTION_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "question": {"type": "string"},
        "header": make_property("string", "One or two words that stand for the question"),
        "options": {"type": "array", "items": _OPTION_SCHEMA, "minItems": 2, "maxItems": 4},
        "multiSelect": make_property("boolean", "Several options may be chosen"),
    },
    "required": ["question", "header", "options", "multiSelect"],
}


async def _run_ask_user_question(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    """Give the model the user's answers, which the host put into `answers`."""
    answers = as_object(tool_input.get("answers"))
    result: JsonObject = {"questions": tool_input.get("questions"), "answers": answers}
    if not answers:
        return ToolOutput("The user gave no answer.", result=result)
    answered = "\n".join(
        f"- {question} {', '.join(map(str, as_list(answer))) if isinstance(answer, list) else answer}"
        for question, answer in answers.items()
    )
    return ToolOutput(f"The user answered:\n{answered}", result=result)


async def _run_exit_plan_mode(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    plan = tool_input.get("plan")
    return ToolOutput("The user approved the plan. Plan mode is over: carry it out.", result={"plan": plan})


_INTERACTIVE = (
    BuiltinSpec(
        ASK_USER_QUESTION,
        "Ask the user when you need a decision or a fact that only they have. Give options that differ in substance; "
        "they may always answer in words of their own.",
        {
            "type": "object",
            "properties": {"questions": {"type": "array", "items": _QUESTION_SCHEMA, "minItems": 1, "maxItems": 4}},
            "required": ["questions"],
        },
        _run_ask_user_question,
        read_only=True,
    ),
    BuiltinSpec(
        EXIT_PLAN_MODE,
        "When you have planned in plan mode and are ready to act: show the user the plan and ask for their approval. "
        "Not for questions, and not for work that changes nothing.",
        {
            "type": "object",
            "properties": {"plan": make_property("string", "The plan, in Markdown")},
            "required": ["plan"],
        },
        _run_exit_plan_mode,
    ),
)
INTERACTIVE_TOOLS: Final[Mapping[str, BuiltinTool]] = {tool.name: tool for tool in _INTERACTIVE}
