"""The answers of a user to questions of the model, as the CLI wants them.

Owns what an `on_question` callback may return, and how answers are written. Pure: asks nobody.

The CLI (2.1.330) takes one text for each question. Several choices are joined with ", ", a choice that holds ", " or a
quote is written as a JSON string first: so it tells choices from a text of the user's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pilothouse.permissions.decisions import NO_ANSWER, Allow, Deny, InvalidAnswerError, Verdict
from pilothouse.permissions.requests import QuestionOption, QuestionRequest, UserQuestion

Choice = str | int | float | QuestionOption
Answer = Choice | Sequence[Choice] | None
Answers = Mapping[str, Answer] | Sequence[Answer] | str | Deny | Allow
"""A mapping from the text (or the header) of each question to its answer; or the answers in order; or one text, which
answers all of it. None leaves a question open. `False` or `Deny(…)`: the user does not want to answer."""


def verdict_of(returned: object, asked: QuestionRequest) -> Verdict:
    """Turn what an `on_question` callback returned into an answer.

    Raises:
        InvalidAnswerError: it does not fit the questions.
    """
    if isinstance(returned, Allow | Deny):
        return returned
    if returned is False:
        return Deny(NO_ANSWER)
    return Allow(updated_input={**asked.request.tool_input, **_fields(returned, asked.questions)})


def _fields(returned: object, questions: tuple[UserQuestion, ...]) -> dict[str, Any]:
    if isinstance(returned, str):
        return {"answers": {questions[0].text: returned}} if len(questions) == 1 else {"response": returned}
    if isinstance(returned, Mapping):
        given = [(_find(key, questions), item) for key, item in cast("Mapping[object, object]", returned).items()]
    elif isinstance(returned, list | tuple):
        items = cast("list[object]", returned)
        if len(items) != len(questions):
            raise InvalidAnswerError(f"on_question returned {len(items)} answers to {len(questions)} questions")
        given = list(zip(questions, items, strict=True))
    else:
        raise InvalidAnswerError(f"on_question returned {type(returned).__name__}; expected a mapping, a list or text")
    return {"answers": {question.text: _written(item) for question, item in given if item is not None}}


def _find(key: object, questions: tuple[UserQuestion, ...]) -> UserQuestion:
    for names in ([question.text for question in questions], [question.header for question in questions]):
        if names.count(cast("str", key)) == 1:
            return questions[names.index(cast("str", key))]
    raise InvalidAnswerError(f"on_question answered {key!r:.80}, which was not asked")


def _written(answer: object) -> str:
    if isinstance(answer, list | tuple):
        return ", ".join(_quoted(_text(choice)) for choice in cast("list[object]", answer))
    return _text(answer)


def _quoted(label: str) -> str:
    return json.dumps(label, ensure_ascii=False) if ", " in label or '"' in label else label


def _text(choice: object) -> str:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, QuestionOption):
        return choice.label
    if isinstance(choice, int | float) and not isinstance(choice, bool) and math.isfinite(choice):
        return str(int(choice)) if choice == int(choice) else str(choice)
    raise InvalidAnswerError(f"on_question gave an answer of type {type(choice).__name__}; expected text or an option")
