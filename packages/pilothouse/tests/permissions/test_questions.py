"""Questions of the model to the user: how they are read, and how answers are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from permission_frames import ANSWERED, QUESTION

from pilothouse.permissions import Allow, Deny, QuestionOption, QuestionRequest, UserQuestion
from pilothouse.permissions.dispatcher import PermissionDispatcher
from pilothouse.permissions.requests import FAILED_MESSAGE, NO_ANSWER_MESSAGE

pytestmark = pytest.mark.anyio

TOPPINGS = {
    "question": "Which toppings?",
    "header": "Toppings",
    "multiSelect": True,
    "options": [{"label": "Ham, cooked"}, {"label": "Olives"}, {"label": '12" rim', "description": "large"}],
}
SIZE = {"question": "Which size?", "header": "Size", "multiSelect": False, "options": [{"label": "S", "preview": "o"}]}
COUNT = {"question": "How many?", "header": "", "kind": "number", "min": 1, "max": 9, "defaultValue": 2, "unit": "pcs"}
THREE = {**QUESTION, "input": {"title": "Pizza", "questions": [TOPPINGS, SIZE, COUNT], "metadata": {"source": "x"}}}


async def answer_to(returned: Any, body: dict[str, Any] = THREE) -> Any:
    return await PermissionDispatcher(on_question=lambda request: returned).handle(body)


async def answers_for(returned: Any) -> Any:
    payload = await answer_to(returned)
    assert payload["behavior"] == "allow"
    assert {key: payload["updatedInput"][key] for key in THREE["input"]} == THREE["input"]
    return payload["updatedInput"]["answers"]


@pytest.mark.parametrize(
    "returned", [{"Color?": "Blue"}, {"Color": "Blue"}, ["Blue"], "Blue", [QuestionOption("Blue")]]
)
async def test_an_answer_is_what_the_recording_has(returned: Any) -> None:
    assert await answer_to(returned, QUESTION) == ANSWERED


async def test_questions_are_typed() -> None:
    seen: list[QuestionRequest] = []
    await PermissionDispatcher(on_question=lambda request: seen.append(request) is not None).handle(THREE)
    (asked,) = seen
    assert asked.title == "Pizza"
    assert asked.request.tool_use_id == QUESTION["tool_use_id"]
    toppings, size, count = asked.questions
    assert toppings == UserQuestion(
        "Which toppings?",
        header="Toppings",
        multi_select=True,
        options=(QuestionOption("Ham, cooked"), QuestionOption("Olives"), QuestionOption('12" rim', "large")),
    )
    assert size.options[0].preview == "o"
    assert (count.kind, count.min, count.max, count.default_value, count.unit) == ("number", 1, 9, 2, "pcs")


async def test_choices_are_joined_so_that_the_cli_can_tell_them_apart() -> None:
    assert await answers_for({"Which toppings?": ["Ham, cooked", "Olives", '12" rim']}) == {
        "Which toppings?": '"Ham, cooked", Olives, "12\\" rim"'
    }
    assert await answers_for({"Toppings": ["Olives"], "Size": "S", "How many?": 3}) == {
        "Which toppings?": "Olives",
        "Which size?": "S",
        "How many?": "3",
    }


async def test_answers_in_order_and_open_questions() -> None:
    assert await answers_for(["a text, of my own", QuestionOption("S"), 2.5]) == {
        "Which toppings?": "a text, of my own",
        "Which size?": "S",
        "How many?": "2.5",
    }
    assert await answers_for([None, "S", 3.0]) == {"Which size?": "S", "How many?": "3"}
    assert await answers_for({}) == {}


async def test_one_text_answers_several_questions_at_once() -> None:
    payload = await answer_to("Let us eat out instead.")
    assert payload["updatedInput"] == {**THREE["input"], "response": "Let us eat out instead."}


async def test_a_user_may_not_want_to_answer() -> None:
    assert await answer_to(False) == {"behavior": "deny", "message": NO_ANSWER_MESSAGE}
    assert await answer_to(Deny("busy")) == {"behavior": "deny", "message": "busy"}
    notes = {**THREE["input"], "answers": {}, "annotations": {"Which size?": {"notes": "why not L?"}}}
    assert await answer_to(Allow(notes)) == {"behavior": "allow", "updatedInput": notes}


@pytest.mark.parametrize(
    "returned",
    [
        None, True, 3, ["S"], ["a", "b", "c", "d"], {"Which colour?": "Red"}, {3: "S"}, {"Size": object()},
        {"Size": True}, {"Size": float("nan")}, {"Size": [["S"]]}, {"Size": {"label": "S"}}, {"Size": b"S"},
    ],
)  # fmt: skip
async def test_answers_that_do_not_fit_are_a_denial_and_logged(returned: Any, caplog: Any) -> None:
    assert await answer_to(returned) == {"behavior": "deny", "message": FAILED_MESSAGE}
    (record,) = caplog.records
    assert record.name == "pilothouse.permissions"
    assert record.exc_info


@pytest.mark.parametrize("questions", [None, "Color?", [3], [{"header": "no question"}], [{"question": 3}]])
async def test_questions_of_another_form_are_denied(questions: Any, caplog: Any) -> None:
    body = {**QUESTION, "input": {"questions": questions}}
    assert await answer_to("Blue", body) == {"behavior": "deny", "message": FAILED_MESSAGE}
    assert len(caplog.records) == 1


async def test_an_answer_to_a_header_that_two_questions_have_is_a_denial(caplog: Any) -> None:
    asked: list[dict[str, Any]] = json.loads(json.dumps(THREE))["input"]["questions"]
    body = {**THREE, "input": {"questions": [{**question, "header": "Size"} for question in asked]}}
    assert await answer_to({"Size": "S"}, body) == {"behavior": "deny", "message": FAILED_MESSAGE}
    assert "was not asked" in caplog.text
