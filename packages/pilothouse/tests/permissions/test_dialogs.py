"""Elicitations of MCP servers, and dialogs of the CLI."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.errors import ControlError, OptionsError, UsageError
from pilothouse.permissions import Accept, Cancel, Decline, DialogRequest, ElicitationRequest
from pilothouse.permissions.dispatcher import DialogDispatcher, ElicitationDispatcher

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
FORM = {
    "subtype": "elicitation", "mcp_server_name": "crm", "message": "Who is it?", "mode": "form",
    "requested_schema": SCHEMA, "property_order": ["name", "age"], "title": "New contact",
}  # fmt: skip
PAGE = {
    "subtype": "elicitation", "mcp_server_name": "crm", "message": "Log in", "mode": "url",
    "url": "https://example.org/login", "elicitation_id": "e1",
}  # fmt: skip
FALLBACK = "refusal_fallback_prompt"
DIALOG = {"subtype": "request_user_dialog", "dialog_kind": FALLBACK, "payload": {"a": 1}, "tool_use_id": "toolu_1"}


async def elicited(returned: Any, body: dict[str, Any] = FORM) -> Any:
    return await ElicitationDispatcher(lambda request: returned).handle(body)


async def shown(returned: Any) -> Any:
    return await DialogDispatcher(lambda request: returned, [FALLBACK]).handle(DIALOG)


async def test_an_elicitation_is_typed() -> None:
    seen: list[ElicitationRequest] = []
    dispatcher = ElicitationDispatcher(lambda request: seen.append(request), session="s")
    await dispatcher.handle(FORM)
    await dispatcher.handle(PAGE)
    await dispatcher.handle({"mode": 3, "requested_schema": "no", "property_order": 1})
    form, page, odd = seen
    assert form == ElicitationRequest(
        server="crm", message="Who is it?", schema=SCHEMA, property_order=("name", "age"), title="New contact",
        session="s", raw=FORM,
    )  # fmt: skip
    assert (page.mode, page.url, page.elicitation_id) == ("url", "https://example.org/login", "e1")
    assert (odd.server, odd.mode, odd.schema, odd.property_order) == ("", "form", None, ())
    assert "Who is it?" in repr(form)


async def test_answers_to_an_elicitation() -> None:
    accepted = {"action": "accept", "content": {"name": "Ada", "age": 36}}
    assert await elicited(Accept({"name": "Ada", "age": 36})) == accepted
    assert await elicited({"name": "Ada", "age": 36}) == accepted
    assert await elicited(Accept(), PAGE) == await elicited(True, PAGE) == {"action": "accept"}
    for declined in (Decline(), False, None):
        assert await elicited(declined) == {"action": "decline"}
    assert await elicited(Cancel()) == {"action": "cancel"}


async def test_without_a_function_elicitations_are_declined() -> None:
    assert await ElicitationDispatcher().handle(FORM) == {"action": "decline"}


@pytest.mark.parametrize("returned", [1, "Ada", Accept, Accept({"a": object()}), Accept("Ada"), ["Ada"]])  # type: ignore[arg-type]
async def test_what_is_no_answer_to_an_elicitation_cancels_it(returned: Any, caplog: Any) -> None:
    assert await elicited(returned) == {"action": "cancel"}
    assert len(caplog.records) == 1


async def test_a_dialog_and_its_result() -> None:
    seen: list[DialogRequest] = []
    dispatcher = DialogDispatcher(lambda request: seen.append(request) or {"choice": "retry"}, [FALLBACK], session="s")
    assert dispatcher.initialize_fields == {"supportedDialogKinds": [FALLBACK]}
    assert await dispatcher.handle(DIALOG) == {"behavior": "completed", "result": {"choice": "retry"}}
    assert seen == [DialogRequest(kind=FALLBACK, payload={"a": 1}, tool_use_id="toolu_1", session="s", raw=DIALOG)]
    for result in (False, 0, "", []):
        assert await shown(result) == {"behavior": "completed", "result": result}
    for cancelled in (None, Cancel(), object()):
        assert await shown(cancelled) == {"behavior": "cancelled"}


async def test_a_dialog_that_was_not_declared_is_not_settled() -> None:
    asked: list[Any] = []
    dispatcher = DialogDispatcher(asked.append, [FALLBACK])
    for body in ({**DIALOG, "dialog_kind": "newer"}, {}):
        with pytest.raises(ControlError) as caught:
            await dispatcher.handle(body)
        assert caught.value.subtype == "request_user_dialog"
    with pytest.raises(ControlError):
        await DialogDispatcher().handle(DIALOG)
    assert not asked
    assert DialogDispatcher().initialize_fields == {}


def test_dialogs_need_kinds_and_kinds_need_a_function() -> None:
    for arguments in ((lambda request: 1, ()), (None, [FALLBACK]), (lambda request: 1, [3]), (lambda request: 1, [""])):
        with pytest.raises(OptionsError, match="kinds"):
            DialogDispatcher(*arguments)  # type: ignore[arg-type]
    assert DialogDispatcher(lambda request: 1, FALLBACK).initialize_fields == {"supportedDialogKinds": [FALLBACK]}
    with pytest.raises(UsageError, match="on_user_dialog"):
        DialogDispatcher(lambda: 1, [FALLBACK])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_elicitation"):
        ElicitationDispatcher(lambda: None)  # type: ignore[arg-type]
