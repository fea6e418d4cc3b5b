"""Usual code of a user: type checkers, run from outside, find no errors in it, and the types that it states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import pilothouse as ph
import pilothouse_fleet.sync
from pilothouse import sync
from pilothouse.hooks import HookEvent, Hooks
from pilothouse.instrumentation import Instrumentation, QueryStart
from pilothouse.permissions import Accept, PlanRequest, QuestionRequest
from pilothouse_fleet import Fleet, Run


@dataclass
class Line:
    what: str
    price: float


@dataclass
class Invoice:
    number: str
    lines: list[Line]


class Letter(TypedDict):
    sender: str


@ph.tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"fine in {city}"


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def may_run(request: ph.PermissionRequest) -> ph.Allow | ph.Deny:
    refusal = ph.Deny("read only")
    assert_type(refusal, ph.Deny)
    return ph.Allow() if request.tool_name == "Read" else refusal


async def may_run_soon(request: ph.PermissionRequest) -> bool:
    return bool(request.suggestions)


def guard(event: ph.PreToolUseEvent) -> ph.HookOutput | None:
    return ph.HookOutput(permission_decision="deny") if event.tool_name == "Bash" else None


async def watch(event: HookEvent) -> dict[str, Any] | None:
    print(event.event_name)
    return None


def choose(request: QuestionRequest) -> dict[str, str]:
    return {question.text: "yes" for question in request.questions}


def approve(request: PlanRequest) -> bool | str:
    return "shorter, please" if len(request.plan) > 1000 else True


def show(message: ph.Message) -> None:
    print(message)


class Times(Instrumentation):
    def query_started(self, start: QueryStart) -> None:
        print(start.model)

    def session_environ(self) -> dict[str, str | None]:
        return {}


async def ask() -> None:
    plain = await ph.query("x", max_turns=3, permission_mode="acceptEdits", allowed_tools=["Read"])
    assert_type(plain.text, str)
    assert_type(plain.output, Any)
    assert_type((await ph.query("x", output_type=Invoice)).output, Invoice)
    assert_type((await ph.query("x", output_type=list[Line], on_message=show)).output, list[Line])
    assert_type((await ph.query("x", output_type=dict[str, int]).result()).output, dict[str, int])
    assert_type((await ph.query("x", output_type=Letter)).raise_for_error().output, Letter)
    assert_type((await ph.query("x", output_type=Invoice | None)).output, Any)
    assert_type((await ph.query("x", output_type={"type": "object"})).output, Any)
    either: ph.QueryResult[Invoice | Line] = await ph.query("x", output_type=Invoice | Line)
    assert_type(either.output, Invoice | Line)
    query = ph.query("x", output_type=Invoice)
    assert_type(query, ph.Query[Invoice])
    async for message in query:
        assert_type(message, ph.Message)
    async for text in query.text_stream():
        assert_type(text, str)
    wider: ph.Query[Invoice | None] = query
    bare: ph.Query = wider
    await read(bare)


async def read(query: ph.Query) -> ph.QueryResult:
    return await query


async def talk() -> None:
    agent = ph.Agent(
        model="opus",
        custom_tools=[get_weather, add, ph.tool(name="plus")(add)],
        can_use_tool=lambda request: request.tool_name == "Read",
        hooks={
            "PreToolUse": [ph.HookMatcher("Bash", [guard]), watch],
            "Stop": watch,
            "PostToolUse": ph.HookMatcher(hooks=watch),
        },
        on_question=choose,
        on_plan=approve,
        on_elicitation=lambda request: Accept({"name": request.message}),
        confirm=lambda prompt, request: prompt == request.tool_name,
        instrumentation=[Times()],
        stderr=print,
    )
    assert_type((await agent.query("x", output_type=Invoice)).output, Invoice)
    hooks: Hooks = {"UserPromptSubmit": lambda event: {"reason": event.prompt}}
    async with agent.session(can_use_tool=may_run_soon, hooks=hooks) as session:
        assert_type((await session.query("x", output_type=Invoice)).output, Invoice)
        assert_type((await session.query("x")).output, Any)
        await session.update(can_use_tool=may_run, hooks={"PreToolUse": guard})
    builder = ph.Options.make().can_use_tool(may_run).hooks({"PreToolUse": guard}).max_turns(3)
    ph.Options(can_use_tool=may_run, hooks={"PreToolUse": watch}).with_(instrumentation=Times())
    ph.configure(builder, hooks=None)


async def ask_many(invoices: list[Line]) -> None:
    async with Fleet(concurrency=4) as fleet:
        async for run in fleet.map(invoices, key=lambda line: line.what, prompt="what", output_type=Invoice):
            assert_type(run, Run[Invoice])
            if run.result is not None:
                assert_type(run.result.output, Invoice)
        submitted = await fleet.submit("x", key="one", output_type=Invoice)
        assert_type((await fleet.wait(submitted)), Run[Invoice])
        assert_type(await fleet.gather(["x"], output_type=Invoice), list[Run[Invoice]])
        assert_type(await fleet.gather(["x"]), list[Run[Any]])
        known: Run = await fleet.wait("one")
        print(known.text)


def block() -> None:
    assert_type(sync.query("x", output_type=Invoice).result().output, Invoice)
    assert_type(sync.query("x", output_type=list[Line]).result().output, list[Line])
    assert_type(sync.query("x", max_turns=3).result().output, Any)
    agent = sync.Agent(can_use_tool=lambda request: ph.Deny(request.tool_name), hooks={"PreToolUse": guard})
    assert_type(agent.query("x", output_type=Letter).result().output, Letter)
    with agent.session() as session:
        assert_type(session.query("x", output_type=Invoice).result().output, Invoice)
        assert_type(session.query("x").result().text, str)
    with pilothouse_fleet.sync.Fleet(agent) as fleet:
        for run in fleet.map(["x"], prompt=lambda text: text.upper(), output_type=Invoice):
            assert_type(run, Run[Invoice])
        assert_type(fleet.submit("x", output_type=Invoice), Run[Invoice])
