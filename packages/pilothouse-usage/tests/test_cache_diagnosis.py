"""The diagnosis of the cache doctor, with requests that no CLI sends on demand."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx2
import pytest
from caching_model import CachingModel, Clock

import pilothouse as ph
from pilothouse_testing import HttpError, ScriptedModel
from pilothouse_usage import CacheDoctor, CacheLoss, CacheLossCause
from pilothouse_usage.cache_doctor import KEPT_CONVERSATIONS, KEPT_REQUESTS

pytestmark = pytest.mark.anyio

MARK = {"type": "ephemeral"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
CALL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls", "timeout": 3}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a b c"}
Body = dict[str, Any]


def make_tool(name: str, **more: Any) -> Body:
    return {"name": name, "description": f"It does {name}.", "input_schema": {"type": "object"}, **more}


def make_body() -> Body:
    """A request in the middle of a turn, with a mark at its end."""
    return {
        "model": "claude-opus-5-5",
        "tools": [make_tool(name) for name in ("Bash", "Read", "mcp__db__query")],
        "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [{**RESULT, "cache_control": MARK}]},
        ],
    }


def go_on(body: Body, prompt: str = "And now?") -> Body:
    """The next request of the same conversation: an answer and a prompt more, and the mark at the new end."""
    grown = copy.deepcopy(body)
    for message in grown["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            block.pop("cache_control", None)
    grown["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        {"role": "user", "content": [{"type": "text", "text": prompt, "cache_control": MARK}]},
    ]
    return grown


class Conversations:
    """Sends requests through a doctor."""

    def __init__(self, doctor: CacheDoctor, url: str, client: httpx2.AsyncClient, clock: Clock) -> None:
        self.doctor = doctor
        self.clock = clock
        self._url = url
        self._client = client

    async def send(self, body: Body, session: str = "s", agent: str = "") -> None:
        names = {"x-claude-code-session-id": session, "x-claude-code-agent-id": agent}
        headers = {name: value for name, value in names.items() if value}
        await self._client.post(f"{self._url}/v1/messages", content=json.dumps(body), headers=headers)

    @property
    def losses(self) -> list[tuple[str, str, str]]:
        return [(loss.cause, loss.part, loss.position) for loss in self.doctor.losses]


@asynccontextmanager
async def converse(model: ScriptedModel, *, caches: bool = True) -> AsyncGenerator[Conversations]:
    clock = Clock()
    model.default = "ok"
    if caches:
        CachingModel(model, clock)
    async with CacheDoctor(clock=clock) as doctor, httpx2.AsyncClient(timeout=20) as client:
        agent = doctor.attach(ph.Agent(base_url=model.url, inherit_env=False))
        yield Conversations(doctor, str(agent.options.base_url), client, clock)


def set_block(index: int, number: int, block: Body) -> Callable[[Body], object]:
    return lambda body: body["messages"][index]["content"].__setitem__(number, block)


CHANGES: dict[str, tuple[Callable[[Body], object], tuple[str, str, str]]] = {
    "tools in another order": (
        lambda body: body["tools"].sort(key=lambda tool: tool["name"], reverse=True),
        ("tools_reordered", "Bash", "tools[0]"),
    ),
    "two servers more": (
        lambda body: body["tools"].extend([make_tool("mcp__b__x"), make_tool("mcp__a__x")]),
        ("mcp_server_added", "a, b", "tools[3]"),
    ),
    "a server with resources more": (
        lambda body: body["tools"].extend([make_tool("ListMcpResourcesTool"), make_tool("mcp__b__x")]),
        ("mcp_server_added", "b", "tools[3]"),
    ),
    "a server and a tool more": (
        lambda body: body["tools"].extend([make_tool("mcp__b__x"), make_tool("Write")]),
        ("tool_added", "Write, mcp__b__x", "tools[3]"),
    ),
    "another tool in place of one": (
        lambda body: body["tools"].__setitem__(1, make_tool("Write")),
        ("tool_removed", "Read", "tools[1]"),
    ),
    "no tools": (lambda body: body["tools"].clear(), ("tool_removed", "Bash, Read, mcp__db__query", "tools[0]")),
    "another tool choice": (
        lambda body: body.update(tool_choice={"type": "any"}),
        ("tool_choice", "tool_choice", "tool_choice"),
    ),
    "another effort": (lambda body: body.update(output_config={"effort": "low"}), ("effort", "effort", "effort")),
    "thinking": (
        lambda body: body.update(thinking={"type": "enabled", "budget_tokens": 5000}),
        ("thinking", "thinking", "thinking"),
    ),
    "a system block more": (
        lambda body: body["system"].append({"type": "text", "text": "It is 12:07."}),
        ("system_prompt", "system[2]", "system[2]"),
    ),
    "no image": (
        set_block(0, 1, {"type": "text", "text": "[image]"}),
        ("earlier_message", "image of the user in messages[0].content[1]", "messages[0].content[1]"),
    ),
    "a cleared result": (
        set_block(2, 0, {**RESULT, "content": "[cleared]"}),
        ("earlier_message", "tool_result of the user in messages[2].content[0]", "messages[2].content[0]"),
    ),
    "another order inside of a call": (
        set_block(1, 0, {**CALL, "input": {"timeout": 3, "command": "ls"}}),
        ("earlier_message", "tool_use of the assistant in messages[1].content[0]", "messages[1].content[0]"),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_the_first_difference_is_named(scripted_model: ScriptedModel, case: str) -> None:
    change, found = CHANGES[case]
    async with converse(scripted_model) as conversations:
        body = make_body()
        await conversations.send(body)
        changed = go_on(body)
        change(changed)
        await conversations.send(changed)
        await conversations.send(go_on(changed))
    # The model of the cache finds this one: it does not compare the order inside of blocks.
    assert conversations.losses == ([] if case == "another order inside of a call" else [found])


@pytest.mark.parametrize("case", CHANGES)
async def test_an_api_without_figures_gives_estimates(scripted_model: ScriptedModel, case: str) -> None:
    change, found = CHANGES[case]
    async with converse(scripted_model, caches=False) as conversations:
        body = make_body()
        await conversations.send(body)
        changed = go_on(body)
        change(changed)
        await conversations.send(changed)
    assert conversations.losses == [found]
    (loss,) = conversations.doctor.losses
    assert loss.is_estimate
    assert 0 < loss.tokens_lost < 300
    assert "Losses are estimates." in conversations.doctor.report()
    assert f"request 2, about {loss.tokens_lost} tokens at 12.5 times the price: " in conversations.doctor.report()


HARMLESS: dict[str, Callable[[Body], object]] = {
    "nothing": bool,
    "another billing header": lambda body: body["system"][0].update(text="x-anthropic-billing-header: b"),
    "text in place of blocks": lambda body: body["messages"][3].update(content="ok"),
    "another order of fields": set_block(2, 0, dict(reversed(RESULT.items()))),
    "marks elsewhere": lambda body: body["system"][1].update(cache_control=MARK),
    "a deferred tool more": lambda body: body["tools"].insert(0, make_tool("mcp__x__y", defer_loading=True)),
    "other limits": lambda body: body.update(max_tokens=9, temperature=0.5, metadata={"user_id": "x"}),
}


@pytest.mark.parametrize("caches", [True, False], ids=["figures", "no figures"])
@pytest.mark.parametrize("case", HARMLESS)
async def test_what_the_api_does_not_cache_may_change(scripted_model: ScriptedModel, case: str, caches: bool) -> None:
    async with converse(scripted_model, caches=caches) as conversations:
        body = make_body()
        await conversations.send(body)
        changed = go_on(body)
        HARMLESS[case](changed)
        await conversations.send(changed)
        await conversations.send(go_on(changed))
    assert conversations.losses == []


@pytest.mark.parametrize("caches", [True, False], ids=["figures", "no figures"])
async def test_other_requests_of_a_session_are_apart(scripted_model: ScriptedModel, caches: bool) -> None:
    title = {
        "model": "claude-haiku-5-5",
        "system": "Write a title.",
        "messages": [{"role": "user", "content": "Look."}],
    }
    async with converse(scripted_model, caches=caches) as conversations:
        first = make_body()
        second = go_on(first)
        side = [{"role": "user", "content": [{"type": "text", "text": "A side question?", "cache_control": MARK}]}]
        sub_agent = {**make_body(), "tools": [make_tool("Bash")], "system": "Search."}
        await conversations.send(first)
        await conversations.send(title)
        await conversations.send(sub_agent, agent="a1")
        await conversations.send({**first, "messages": go_on(first, "A side question?")["messages"][:-2] + side})
        await conversations.send(second)
        await conversations.send({**make_body(), "system": "Other."}, session="t")
        await conversations.send(go_on(sub_agent), agent="a1")
        await conversations.send(go_on(second))
        await conversations.send(title)
    assert conversations.losses == []


@pytest.mark.parametrize("turns", [2, KEPT_REQUESTS + 2])
@pytest.mark.parametrize("caches", [True, False], ids=["figures", "no figures"])
async def test_going_back_loses_nothing(scripted_model: ScriptedModel, caches: bool, turns: int) -> None:
    async with converse(scripted_model, caches=caches) as conversations:
        first = body = make_body()
        await conversations.send(body)
        for _ in range(turns):
            body = go_on(body)
            await conversations.send(body)
        await conversations.send(go_on(first, "Something else."))
        await conversations.send(go_on(go_on(first, "Something else.")))
    assert conversations.losses == []


async def test_clients_without_a_session_id_may_interleave(scripted_model: ScriptedModel) -> None:
    async with converse(scripted_model) as conversations:
        bodies = [make_body() for _ in range(3)]
        for number, body in enumerate(bodies):
            body["messages"] = [
                {"role": "user", "content": [{"type": "text", "text": f"Look at {number}.", "cache_control": MARK}]}
            ]
        for _ in range(3):
            for body in bodies:
                await conversations.send(body, session="")
            bodies = [go_on(body, f"And {number}?") for number, body in enumerate(bodies)]
        assert conversations.losses == []
        bodies[1]["system"] = "Be brief."
        await conversations.send(bodies[1], session="")
    assert conversations.losses == [("system_prompt", "system[1]", "system[1]")]


async def test_a_refused_request_is_not_compared(scripted_model: ScriptedModel) -> None:
    async with converse(scripted_model) as conversations:
        body = make_body()
        await conversations.send(body)
        scripted_model.on(lambda request: "Be brief." in str(request.body), HttpError(529), times=1)
        await conversations.send({**go_on(body), "system": "Be brief."})
        await conversations.send(go_on(body))
    assert conversations.losses == []
    assert conversations.doctor.report().startswith("2 requests; none of them lost the cache.")


@pytest.mark.parametrize(("mark", "lifetime", "factor"), [(MARK, 300, 12.5), ({**MARK, "ttl": "1h"}, 3600, 20)])
async def test_the_lifetime_comes_from_the_mark(
    scripted_model: ScriptedModel, mark: Body, lifetime: int, factor: float
) -> None:
    async with converse(scripted_model, caches=False) as conversations:
        body = make_body()
        body["messages"][-1]["content"][-1]["cache_control"] = mark
        for seconds in (0, lifetime, lifetime + 1):
            conversations.clock.now += seconds
            await conversations.send(body, session="s")
    assert conversations.losses == [("expired", str(lifetime + 1), "")]
    assert conversations.doctor.losses[0].cost_factor == factor


async def test_without_a_mark_there_is_nothing_to_lose(scripted_model: ScriptedModel) -> None:
    async with converse(scripted_model, caches=False) as conversations:
        body = make_body()
        del body["messages"][-1]["content"][-1]["cache_control"]
        await conversations.send(body)
        conversations.clock.now = 10_000
        await conversations.send({**go_on(body), "system": "Be brief."})
    assert conversations.losses == []
    assert "Losses are estimates" not in conversations.doctor.report()


async def test_odd_texts_are_read(scripted_model: ScriptedModel) -> None:
    async with converse(scripted_model, caches=False) as conversations:
        body = make_body()
        body["messages"][0]["content"][0]["text"] = "half an emoji: \ud83d"
        await conversations.send(body)
        await conversations.send({**go_on(body), "system": "Be brief."})
    assert [cause for cause, *_ in conversations.losses] == ["system_prompt"]


async def test_a_new_doctor_says_that_nothing_came() -> None:
    async with CacheDoctor() as doctor:
        assert doctor.report() == (
            "No request reached the doctor. Attach the agent and query inside `async with`; a settings file with "
            "ANTHROPIC_BASE_URL or a cloud provider also prevents it."
        )


async def test_only_the_latest_conversations_are_kept(scripted_model: ScriptedModel) -> None:
    async with converse(scripted_model, caches=False) as conversations:
        for number in range(KEPT_CONVERSATIONS + 5):
            await conversations.send(make_body(), session=str(number))
        assert len(vars(conversations.doctor)["_conversations"]) == KEPT_CONVERSATIONS
        for number in (0, KEPT_CONVERSATIONS):
            await conversations.send({**go_on(make_body()), "system": "Be brief."}, session=str(number))
    assert [loss.conversation for loss in conversations.doctor.losses] == [(str(KEPT_CONVERSATIONS), "")]


def test_each_cause_has_advice() -> None:
    for cause in get_args(CacheLossCause):
        assert CacheLoss(cause, "PART", "", 5, False, 12.5, 1, ("s", "a1")).advice.endswith(".")
