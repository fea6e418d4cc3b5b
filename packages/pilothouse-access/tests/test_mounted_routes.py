"""Every route that an application can mount: which host names, origins and bodies it takes."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import anyio
import pytest
from fastapi import APIRouter, FastAPI
from places import SOURCES
from session_cli import Cli
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import pilothouse as ph
from pilothouse_access import guard
from pilothouse_access.guard import AccessGuard, AccessRules, find_application_access
from pilothouse_access.owners import Owner
from pilothouse_doors.ui import agui_route, vercel_route
from pilothouse_models.endpoints import EndpointModels, anthropic_routes, openai_routes

EVIL = "evil.example:8000"

Maker = Callable[..., Any]
MAKERS: dict[str, Maker] = {
    "agui_route": lambda **rules: agui_route("/door", ph.Agent(transport=Cli().transport), **rules),
    "vercel_route": lambda **rules: vercel_route("/door", ph.Agent(transport=Cli().transport), resumable=True, **rules),
    "openai_routes": lambda **rules: openai_routes(EndpointModels(), token=None, **rules),
    "anthropic_routes": lambda **rules: anthropic_routes(EndpointModels(), token=None, **rules),
}
"""How a test makes each of them."""


def list_public_makers() -> Iterator[str]:
    """The functions that a package offers and whose name says that they make routes."""
    places = [str(source.parent) for source in SOURCES if source.name != "pilothouse_compat"]
    for module in pkgutil.walk_packages(places):
        if module.ispkg and module.name.startswith("pilothouse"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if inspect.isfunction(value) and name.endswith(("_route", "_routes")):
                    yield name


def test_each_function_that_makes_routes_is_in_these_tests() -> None:
    assert set(list_public_makers()) == set(MAKERS)


def make_routes(name: str, **rules: Any) -> list[Route]:
    made = MAKERS[name](**rules)
    return made if isinstance(made, list) else [made]


class Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body


async def send(
    application: Any, method: str, path: str, headers: dict[str, str], body: AsyncGenerator[bytes] | None = None
) -> Answer:
    """One request, straight to an application."""
    sent = [(name.encode(), value.encode()) for name, value in {"content-type": "application/json", **headers}.items()]
    # The path is the last part of the one that a mounted application has.
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "headers": sent}
    received: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if body is None:
            return {"type": "http.request", "body": b"{}", "more_body": False}
        return {"type": "http.request", "body": await anext(body), "more_body": True}

    async def take(message: dict[str, Any]) -> None:
        received.append(message)

    with anyio.fail_after(10):
        await application(scope, receive, take)
    return Answer(received[0]["status"], b"".join(each.get("body", b"") for each in received))


def list_requests(route: Route) -> Iterator[tuple[str, str]]:
    """A method and a path for each way to reach a route."""
    path = route.path.replace("{rest:pilothouse_below}", "/chat/stream").replace("{id:path}", "x").replace("{id}", "x")
    for method in sorted(method for method in route.methods or () if method):
        yield method, path.replace("{path:path}", "x")
    yield "PUT", path.replace("{path:path}", "x")  # what the route does not take


REBOUND = {"host": EVIL, "origin": f"http://{EVIL}"}


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAKERS)
async def test_a_page_cannot_reach_a_route_through_a_name_of_its_own(name: str) -> None:
    routes = make_routes(name)
    application = Starlette(routes=routes)
    for route in routes:
        for method, path in list_requests(route):
            answer = await send(application, method, path, REBOUND)
            if name in ("agui_route", "vercel_route") and method == "PUT":
                assert answer.status == 405  # Starlette's own
                continue
            assert (answer.status, b"names=" in answer.body) == (403, True), (method, path, answer.body)
            other = await send(application, method, path, {"host": "localhost", "origin": f"http://{EVIL}"})
            assert (other.status, b"origins=" in other.body) == (403, True), (method, path, other.body)


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAKERS)
async def test_names_and_origins_that_are_allowed(name: str) -> None:
    routes = make_routes(name, names=["App.example"], origins=["https://page.example"])
    application = Starlette(routes=routes)
    method, path = next(list_requests(routes[0]))
    for headers in (
        {"host": "localhost:8000"},
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
        {"host": "[::1]"},
        {"host": "app.example"},
        {"host": "app.example", "origin": "https://app.example"},
        {"host": "app.example", "origin": "https://page.example"},
    ):
        assert (await send(application, method, path, headers)).status not in (401, 403), headers
    for wrong in ({"names": ["https://app.example"]}, {"origins": ["app.example"]}):
        with pytest.raises(ph.UsageError, match="expected"):
            MAKERS[name](**wrong)


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAKERS)
async def test_the_guard_stays_where_a_framework_copies_the_route(name: str) -> None:
    [route, *_] = make_routes(name)
    router = APIRouter(routes=[route])
    copied = FastAPI()
    copied.include_router(router, prefix="/deeper")
    for application in (copied, Starlette(routes=[Mount("/deeper", routes=[route])])):
        method, path = next(list_requests(route))
        assert (await send(application, method, f"/deeper{path}", REBOUND)).status == 403


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAKERS)
async def test_a_body_that_drips_is_refused_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)

    async def drip() -> AsyncGenerator[bytes]:
        while True:
            await anyio.sleep(0.01)
            yield b" "

    routes = make_routes(name)
    path = next(path for method, path in list_requests(routes[0]) if method == "POST").removesuffix("/chat/stream")
    begin = time.monotonic()
    answer = await send(Starlette(routes=routes), "POST", path, {"host": "localhost"}, drip())
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (408, "timeout")
    assert time.monotonic() - begin < 5


@pytest.mark.anyio
async def test_an_application_that_names_no_user_is_refused() -> None:
    async def nobody(request: Any) -> Any:
        return None

    for get_owner in (nobody, lambda request: ""):
        routes = [agui_route("/agui", ph.Agent(transport=Cli().transport), get_owner=get_owner)]
        for method, path in (("POST", "/agui"), ("GET", "/agui/t")):
            answer = await send(Starlette(routes=routes), method, path, {"host": "localhost"})
            assert (answer.status, b"get_owner" in answer.body) == (403, True)


@pytest.mark.anyio
async def test_a_user_of_an_application_is_no_operator() -> None:
    request: Any = None
    access = await find_application_access(lambda request: "ann", request)
    assert (access.owner, access.owners) == (Owner("ann"), None)


def test_tokens_make_the_owners() -> None:
    names = {owner.name for owner in AccessRules(token="t", tokens={"ann": "a"}).owners}
    assert names == {"", "ann"}
    assert {owner.name for owner in AccessRules(tokens={"ann": "a"}).owners} == {"ann"}
    assert [owner.is_operator for owner in AccessRules().owners] == [True]


@pytest.mark.anyio
async def test_a_guard_behind_another_guard_checks_its_own_tokens() -> None:
    found: list[Owner] = []

    async def serve(scope: Any, receive: Any, respond: Any) -> None:
        found.append(scope[guard.ACCESS_KEY].owner)
        await respond({"type": "http.response.start", "status": 204, "headers": []})

    outer_rules = AccessRules(tokens={"ann": "the-token-of-ann"}, names=["app.example"])
    headers = {"host": "app.example", "authorization": "Bearer the-token-of-ann"}
    mounted = AccessGuard(AccessGuard(serve, AccessRules()), outer_rules)
    assert (await send(mounted, "GET", "/", headers)).status == 204
    assert found == [Owner("ann")]
    own_tokens = AccessGuard(AccessGuard(serve, AccessRules(token="another", names=["app.example"])), outer_rules)
    assert (await send(own_tokens, "GET", "/", headers)).status == 401
