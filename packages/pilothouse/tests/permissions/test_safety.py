"""Whatever goes wrong in a callback is a refusal: never a yes, never a silence, and never told to the model."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import pytest
from permission_frames import BASH, PLAN, QUESTION

from pilothouse.permissions import Allow, Confirm, Deny, PermissionRequest
from pilothouse.permissions.dispatcher import (
    DialogDispatcher,
    ElicitationDispatcher,
    PermissionDispatcher,
)
from pilothouse.permissions.requests import FAILED_MESSAGE, InvalidAnswerError, parse_decision

pytestmark = pytest.mark.anyio

SECRET = "sk-ant-secret"
ELICITATION = {"subtype": "elicitation", "mcp_server_name": "files", "message": "Name?"}
DIALOG = {"subtype": "request_user_dialog", "dialog_kind": "refusal_fallback_prompt", "payload": {}}
REFUSED = {"behavior": "deny", "message": FAILED_MESSAGE}
KINDS = ["refusal_fallback_prompt"]


def dispatchers(function: Any) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Every dispatcher with that function as its callback, a question for it, and the answer when it fails."""

    async def confirm(prompt: str, request: Any) -> Any:
        answer = function(request)
        return await answer if inspect.isawaitable(answer) else answer

    return [
        (PermissionDispatcher(function), BASH, REFUSED),
        (PermissionDispatcher(confirm=confirm), BASH, REFUSED),
        (PermissionDispatcher(on_question=function), QUESTION, REFUSED),
        (PermissionDispatcher(on_plan=function), PLAN, REFUSED),
        (ElicitationDispatcher(function), ELICITATION, {"action": "cancel"}),
        (DialogDispatcher(function, KINDS), DIALOG, {"behavior": "cancelled"}),
    ]


async def test_a_callback_that_raises_refuses_and_is_logged_once(caplog: Any) -> None:
    def sync_broken(request: Any) -> Any:
        raise KeyError(SECRET)

    async def broken(request: Any) -> Any:
        raise ExceptionGroup(SECRET, [RuntimeError(SECRET)])

    for function in (sync_broken, broken):
        for dispatcher, body, refusal in dispatchers(function):
            caplog.clear()
            assert await dispatcher.handle(body) == refusal
            assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == [("ERROR", True)]
            assert SECRET not in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    "returned",
    [
        None, 1, 0, "", "yes", {}, {"behavior": "allow"}, [], (True,), Allow, Deny, object(),
        Allow({"command": object()}), Allow({3: "x"}), Allow("rm"), Allow(["rm"]),  # type: ignore[arg-type]
        Allow(updated_permissions="setMode"), Allow(updated_permissions=[{"type": "setMode"}]),  # type: ignore[arg-type]
        Allow(updated_permissions=[None]), Allow(updated_permissions={}),  # type: ignore[arg-type]
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],  # the same in every process that collects
)  # fmt: skip
async def test_what_is_no_decision_denies_and_is_logged(returned: Any, caplog: Any) -> None:
    assert await PermissionDispatcher(lambda request: returned).handle(BASH) == REFUSED
    assert await PermissionDispatcher(confirm=lambda prompt, request: returned).handle(BASH) == REFUSED
    assert len(caplog.records) == 2


@pytest.mark.parametrize("kind", [Allow, Deny])
def test_the_error_about_a_class_says_to_call_it(kind: type) -> None:
    with pytest.raises(InvalidAnswerError, match=rf"decide returned the class {kind.__name__}; call it: return"):
        parse_decision(kind, "decide")


async def test_an_input_that_contains_itself_denies() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert await PermissionDispatcher(lambda request: Allow(loop)).handle(BASH) == REFUSED


async def test_a_confirmer_cannot_pass_it_on() -> None:
    asked: list[str] = []

    def confirm(prompt: str, request: PermissionRequest) -> Any:
        asked.append(prompt)
        return Confirm("again?")

    assert await PermissionDispatcher(lambda request: Confirm("sure?"), confirm).handle(BASH) == REFUSED
    assert asked == ["sure?"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tool_name": ""},
        {"tool_name": 3},
        {"tool_name": "Bash", "input": "ls"},
        {"tool_name": "Bash", "input": None},
    ],
)
async def test_a_question_that_cannot_be_read_is_denied(body: dict[str, Any]) -> None:
    assert await PermissionDispatcher(lambda request: True).handle(body) == REFUSED


async def test_a_withdrawn_question_is_cancelled_and_stays_cancelled(caplog: Any) -> None:
    log: list[str] = []
    started: list[anyio.Event] = []

    async def slow(request: Any) -> Any:
        started[-1].set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cleaned up")

    async def ask(dispatcher: Any, body: dict[str, Any]) -> None:
        await dispatcher.handle(body)
        log.append("answered")

    for dispatcher, body, _ in dispatchers(slow):
        started.append(anyio.Event())
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, dispatcher, body)
                await started[-1].wait()
                group.cancel_scope.cancel()
    assert log == ["cleaned up"] * len(started)
    assert not caplog.records


# The two ways in which asyncio, and only asyncio, says "cancelled".
