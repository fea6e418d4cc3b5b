"""Requests that wait until somebody settles them, without a child: once, from anywhere, with a time limit."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from permission_frames import BASH, PLAN, QUESTION

import pilothouse as ph
from pilothouse.errors import AskSettledError, OptionsError, UsageError
from pilothouse.permissions import AddRules, Ask, Asks, PermissionRule, SetMode
from pilothouse.permissions.dispatcher import ElicitationDispatcher, PermissionDispatcher

pytestmark = pytest.mark.anyio

FORM = {"subtype": "elicitation", "mcp_server_name": "crm", "message": "Who is it?", "mode": "form"}
RULE = {"type": "addRules", "rules": [{"toolName": "mcp__a__b"}], "behavior": "allow", "destination": "localSettings"}
CALL = {"subtype": "can_use_tool", "tool_name": "mcp__a__b", "input": {"x": 1}, "permission_suggestions": [RULE]}
EDIT = {
    "subtype": "can_use_tool",
    "tool_name": "Edit",
    "input": {"file_path": "a"},
    "permission_suggestions": [{"type": "setMode", "mode": "acceptEdits", "destination": "session"}],
}


class Scope:
    """Stands for a session."""


def handle(asks: Asks, body: dict[str, Any], scope: Any) -> Awaitable[Any]:
    park = partial(asks.park, scope)
    make: Callable[..., Any] = ElicitationDispatcher if body["subtype"] == "elicitation" else PermissionDispatcher
    return make(park=park).handle(body)


async def settle(body: dict[str, Any], do: Callable[[Ask], object], **settings: Any) -> Any:
    """What the CLI gets for a request that `do` settles."""
    asks, answers = Asks(**settings), list[Any]()

    async def run() -> None:
        answers.append(await handle(asks, body, Scope()))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            do(await asks.wait())
    assert list(asks) == []
    return answers[0]


@pytest.mark.parametrize(
    ("body", "do", "answer"),
    [
        (BASH, lambda a: a.allow(), {"behavior": "allow", "updatedInput": BASH["input"]}),
        (BASH, lambda a: a.allow(updated_input={"command": "true"}), {"updatedInput": {"command": "true"}}),
        (BASH, lambda a: a.deny("no time", interrupt=True), {"message": "no time", "interrupt": True}),
        (PLAN, lambda a: a.allow(), {"behavior": "allow"}),
        (PLAN, lambda a: a.answer("shorter"), {"behavior": "deny"}),
        (FORM, lambda a: a.answer({"name": "Ada"}), {"action": "accept", "content": {"name": "Ada"}}),
        (FORM, lambda a: a.deny(), {"action": "decline"}),
        ({**FORM, "mode": "url"}, lambda a: a.allow(), {"action": "accept"}),
        (CALL, lambda a: a.allow(always=True), {"updatedPermissions": [{**RULE, "destination": "session"}]}),
        (CALL, lambda a: a.allow(always="localSettings"), {"updatedPermissions": [RULE]}),
        (EDIT, lambda a: a.allow(always=True), {"updatedPermissions": EDIT["permission_suggestions"]}),
    ],
)  # fmt: skip
async def test_a_settled_ask_is_the_answer_of_the_cli(body: Any, do: Any, answer: dict[str, Any]) -> None:
    given = await settle(body, do)
    assert {name: given.get(name) for name in answer} == answer


async def test_a_question_is_answered_and_a_wrong_answer_leaves_it_open() -> None:
    text, label = (QUESTION["input"]["questions"][0][name] for name in ("question", "options"))

    def do(ask: Ask) -> None:
        assert ask.kind == "question"
        for wrong in ({"something else": "x"}, 3, ["a"] * 9):
            with pytest.raises(UsageError):
                ask.answer(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="does not answer a question"):
            ask.allow()
        assert not ask.is_settled
        ask.answer({text: label[0]["label"]})

    given = await settle(QUESTION, do)
    assert given["updatedInput"]["answers"] == {text: label[0]["label"]}


async def test_the_second_decision_is_an_error_that_names_the_first() -> None:
    def do(ask: Ask) -> None:
        ask.allow(by="Ann")
        for late in (ask.allow, ask.deny):
            with pytest.raises(AskSettledError, match="Allow by 'Ann'") as caught:
                late(by="Bob")
            assert (caught.value.by, caught.value.decision, caught.value.ask_id) == ("Ann", ph.Allow(), ask.id)

    assert (await settle(BASH, do))["behavior"] == "allow"


async def test_of_many_threads_one_settles() -> None:
    won: list[int] = []

    def do(ask: Ask) -> None:
        ready = threading.Barrier(8)

        def run(number: int) -> None:
            ready.wait()
            with suppress(AskSettledError):
                ask.deny(str(number))
                won.append(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    answer = await settle(BASH, do)
    assert [answer["message"]] == [str(number) for number in won]


async def test_after_its_time_the_answer_is_no_and_says_why(caplog: Any) -> None:
    asks = Asks(timeout=0.01)
    answer = await handle(asks, BASH, Scope())
    assert answer["behavior"] == "deny"
    assert "nobody decided within 0.01 s" in answer["message"]
    assert "refused: nobody decided" in caplog.text
    assert await handle(asks, FORM, Scope()) == {"action": "cancel"}


@pytest.mark.virtual_time
async def test_a_late_answer_learns_of_the_timeout() -> None:
    asks, kept = Asks(timeout=10), list[Ask]()

    async def keep() -> None:
        kept.append(await asks.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        await handle(asks, BASH, Scope())
    with pytest.raises(AskSettledError, match="Deny by 'timeout'"):
        kept[0].allow()


async def test_what_the_cli_withdraws_is_settled_without_a_decision() -> None:
    asks, kept = Asks(), list[Ask]()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await handle(asks, BASH, Scope())

        tasks.start_soon(run)
        kept.append(await asks.wait())
        tasks.cancel_scope.cancel()
    [ask] = kept
    assert ask.settlement is not None
    assert (ask.settlement.decision, ask.settlement.by) == (None, "withdrawn")
    assert list(asks) == []
    with pytest.raises(AskSettledError, match="withdrawn"):
        ask.allow()


async def test_a_closed_collection_denies_at_once(caplog: Any) -> None:
    asks = Asks(on_ask=lambda ask: asks.close())
    assert (await handle(asks, BASH, Scope()))["behavior"] == "deny"
    assert (await handle(asks, BASH, Scope()))["behavior"] == "deny"
    assert [ask async for ask in asks] == []
    assert "nobody decides here any more" in caplog.text
    with pytest.raises(UsageError, match="no approval will come"):
        await asks.wait()


async def test_a_loop_gets_each_ask_once_in_a_task_and_in_a_thread() -> None:
    asks, seen = Asks(), dict[str, list[str]](task=[], thread=[])
    ids: list[str] = []

    async def run() -> None:
        await handle(asks, BASH, Scope())

    async def read() -> None:
        async for ask in asks:
            seen["task"].append(ask.id)

    def read_in_thread() -> None:
        for ask in asks.stream():
            seen["thread"].append(ask.id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(to_thread.run_sync, read_in_thread)
            for number in (1, 2, 3):
                tasks.start_soon(run)
                await asks.condition.wait_until(lambda: len(asks) == number)  # noqa: B023
            while min(map(len, seen.values())) < 3:
                await anyio.wait_all_tasks_blocked()
            ids += [ask.id for ask in asks]
            asks[ids[1]].allow()
            asks.close()
    assert seen == {"task": ids, "thread": ids}


@pytest.mark.parametrize(
    ("first", "second", "is_asked"),
    [
        (BASH, BASH, False),
        (BASH, {**BASH, "input": {**BASH["input"], "description": "other words"}}, False),
        (BASH, {**BASH, "input": {"command": BASH["input"]["command"] + "; rm -rf /"}}, True),
        (CALL, {**CALL, "input": {"x": 2}}, False),
        (CALL, {**CALL, "tool_name": "mcp__a__c"}, True),
        (EDIT, {**EDIT, "input": {"file_path": "b"}}, False),
        (EDIT, {**EDIT, "permission_suggestions": [RULE]}, True),
        (EDIT, {**EDIT, "default_to_no": True}, True),
        (EDIT, {**EDIT, "decision_reason_type": "safetyCheck"}, True),
    ],
)
async def test_allowed_for_some_minutes_means_calls_of_the_same_kind(first: Any, second: Any, is_asked: bool) -> None:
    asked: list[Ask] = []

    def decide(ask: Ask) -> None:
        asked.append(ask)
        ask.allow(minutes=15, by="Ann") if len(asked) == 1 else ask.deny()

    asks, scope = Asks(on_ask=decide), Scope()
    assert (await handle(asks, first, scope))["behavior"] == "allow"
    assert (await handle(asks, second, scope))["behavior"] == ("deny" if is_asked else "allow")
    assert len(asked) == 1 + is_asked
    other = await handle(asks, first, Scope())
    assert other["behavior"] == "deny"  # another session


async def test_minutes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pilothouse.permissions.approvals.time.monotonic", lambda: now[0])
    asked: list[Ask] = []

    def decide(ask: Ask) -> None:
        asked.append(ask)
        ask.allow(minutes=15)

    asks, scope = Asks(on_ask=decide, timeout=None), Scope()
    for now[0], count in ((100.0, 1), (999.9, 1), (1000.0, 2)):
        await handle(asks, BASH, scope)
        assert len(asked) == count


async def test_minutes_end_with_a_closed_collection() -> None:
    asks, scope = Asks(on_ask=lambda ask: ask.allow(minutes=15)), Scope()
    assert (await handle(asks, BASH, scope))["behavior"] == "allow"
    asks.close()
    assert (await handle(asks, BASH, scope))["behavior"] == "deny"


async def test_minutes_are_above_zero() -> None:
    def decide(ask: Ask) -> None:
        wrong: list[Any] = [0, -1, float("nan"), "15"]
        for minutes in wrong:
            with pytest.raises(UsageError, match="minutes: expected a number above 0"):
                ask.allow(minutes=minutes)
        ask.deny()

    assert (await handle(Asks(on_ask=decide), BASH, Scope()))["behavior"] == "deny"


async def test_what_cannot_be_allowed_for_longer_says_so() -> None:
    def do(ask: Ask) -> None:
        with pytest.raises(UsageError, match="a person has to decide each one"):
            ask.allow(minutes=15)
        with pytest.raises(UsageError, match="proposes no rule"):
            ask.allow(always=True)
        assert not ask.is_settled
        ask.deny()

    for change in (
        {"suppress_always_allow_rule": True},
        {"decision_reason_type": "safetyCheck", "permission_suggestions": []},
    ):
        await settle({**CALL, **change}, do)
    wider = {
        **CALL,
        "default_to_no": True,
        "permission_suggestions": [{"type": "setMode", "mode": "bypassPermissions"}],
    }
    await settle(wider, do)


@pytest.mark.parametrize("longer", [{"minutes": 15}, {"always": True}, {"always": "localSettings"}])
async def test_a_changed_call_is_allowed_once(longer: Any) -> None:
    def do(ask: Ask) -> None:
        with pytest.raises(UsageError, match="another input is allowed once"):
            ask.allow(updated_input={"x": 2}, **longer)
        ask.allow(updated_input={"x": 1}, **longer)

    assert (await settle(CALL, do))["behavior"] == "allow"


async def test_a_callback_that_fails_is_logged_and_the_ask_waits_on(caplog: Any) -> None:
    async def fail(ask: Ask) -> None:
        raise RuntimeError("no network")

    async def allow_later(ask: Ask) -> None:
        await anyio.wait_all_tasks_blocked()
        ask.allow()

    assert (await handle(Asks(on_ask=fail, notify=[fail, allow_later]), BASH, Scope()))["behavior"] == "allow"
    assert sorted(record.args[0] for record in caplog.records) == ["notify", "on_ask"]


async def test_a_waiting_callback_ends_with_the_ask() -> None:
    ended = anyio.Event()

    async def show(ask: Ask) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    await settle(BASH, lambda ask: ask.allow(), notify=[show])
    assert ended.is_set()


async def test_functions_come_first_and_confirm_waits() -> None:
    def decide(request: ph.PermissionRequest) -> Any:
        return True if request.tool_name == "Bash" else ph.Confirm("Really?")

    titles: list[str] = []

    def settle_it(ask: Ask) -> None:
        titles.append(ask.title)
        ask.allow()

    asks = Asks(on_ask=settle_it)
    dispatcher = PermissionDispatcher(decide, park=partial(asks.park, Scope()))
    assert (await dispatcher.handle(BASH))["behavior"] == "allow"
    assert titles == []
    assert (await dispatcher.handle(CALL))["behavior"] == "allow"
    assert titles == ["Really?"]


async def test_the_description_tells_secrets_only_on_request() -> None:
    secret = {**BASH, "input": {"command": "curl -H 'token: hunter2'"}, "title": "Run curl hunter2?"}

    def do(ask: Ask) -> None:
        shown = ask.describe()
        assert "hunter2" not in json.dumps(shown)
        assert "hunter2" not in repr(ask)
        assert (shown["kind"], shown["tool"], shown["id"]) == ("permission", "Bash", ask.id)
        assert json.loads(json.dumps(ask.describe(details=True)))["request"]["input"] == secret["input"]
        ask.deny()

    await settle(secret, do)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"on_ask": 3}, {"notify": [lambda: None]}, {"timeout": "1"}])
async def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Asks(**wrong)


async def test_without_the_option_a_session_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"asks=ph\.Asks\(\)"):
        _ = ph.session().asks
    with pytest.raises(OptionsError, match="cannot be combined"):
        ph.session(asks=Asks(), confirm=lambda prompt, request: True)  # pyright: ignore[reportUnknownLambdaType]


async def test_rules_of_a_program_go_with_a_yes() -> None:
    rule = AddRules([PermissionRule.parse("Bash(git:*)")])
    answer = await settle(BASH, lambda ask: ask.allow(updated_permissions=[rule, SetMode("plan")]))
    assert [update["type"] for update in answer["updatedPermissions"]] == ["addRules", "setMode"]


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("nan")])
def test_a_time_limit_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(OptionsError, match="timeout: expected a number of seconds"):
        Asks(timeout=timeout)
