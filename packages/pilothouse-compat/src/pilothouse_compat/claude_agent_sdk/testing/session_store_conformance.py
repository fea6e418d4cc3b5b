"""What every session store has to do, as assertions: one function for each method."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from .._internal.session_store import fold_session_summary
from .._options import implements
from ..types import SessionStore

OPTIONAL: Final = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")
_SINCE_2001_MS: Final = 1e12  # a time in seconds is smaller
_MAIN: Final[dict[str, str]] = {"project_key": "project", "session_id": "session"}
_OTHER: Final[dict[str, str]] = {"project_key": "project", "session_id": "other"}
_FOREIGN: Final[dict[str, str]] = {"project_key": "foreign", "session_id": "session"}
_ONE: Final[dict[str, str]] = {**_MAIN, "subpath": "subagents/agent-1"}
_TWO: Final[dict[str, str]] = {**_MAIN, "subpath": "subagents/agent-2"}


def _entry(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "x", "uuid": f"u{number}", "n": number, **fields}


async def run_session_store_conformance(
    make_store: Callable[[], SessionStore | Awaitable[SessionStore]], *, skip_optional: frozenset[str] = frozenset()
) -> None:
    """Assert what a store has to do; methods that it lacks are left out.

    Args:
        make_store: makes an empty store, several times.
        skip_optional: optional methods that are left out too.

    Raises:
        AssertionError: the store behaves differently.
    """
    unknown = skip_optional - set(OPTIONAL)
    assert not unknown, f"unknown optional methods in skip_optional: {sorted(unknown)}"

    async def make() -> Any:
        made = make_store()
        return await made if inspect.isawaitable(made) else made

    probe = await make()
    has = {name for name in OPTIONAL if name not in skip_optional and implements(probe, name)}
    for check in (_check_order, _check_keys):
        await check(await make())
    for name, checks in _CHECKS.items():
        for check in checks if name in has else ():
            await check(await make(), has)


async def _check_order(store: Any) -> None:
    assert await store.load(_MAIN) is None, "load() of an unknown session returns None"
    await store.append(_MAIN, [_entry(2), _entry(1)])
    await store.append(_MAIN, [])
    await store.append(_MAIN, [_entry(3)])
    assert await store.load(_MAIN) == [_entry(2), _entry(1), _entry(3)], "load() returns what was appended, in order"
    assert await store.load({**_MAIN, "subpath": "none"}) is None, "load() of an unknown subpath returns None"


async def _check_keys(store: Any) -> None:
    for number, key in enumerate((_MAIN, _ONE, _OTHER, _FOREIGN)):
        await store.append(key, [_entry(number)])
    for number, key in enumerate((_MAIN, _ONE, _OTHER, _FOREIGN)):
        assert await store.load(key) == [_entry(number)], f"{key} is a transcript of its own"


async def _check_sessions(store: Any, _: set[str]) -> None:
    for key in (_MAIN, _ONE, _OTHER, _FOREIGN):
        await store.append(key, [_entry(1)])
    listed = await store.list_sessions("project")
    assert sorted(each["session_id"] for each in listed) == ["other", "session"], "list_sessions() names each once"
    assert all(each["mtime"] > _SINCE_2001_MS for each in listed), "mtime is in milliseconds"
    assert len(await store.list_sessions("foreign")) == 1
    assert await store.list_sessions("never") == []


async def _check_summaries(store: Any, has: set[str]) -> None:
    await store.append(_MAIN, [_entry(1, timestamp="2024-01-01T00:00:00.000Z", customTitle="first"), _entry(2)])
    await store.append(_MAIN, [_entry(3, customTitle="second")])
    await store.append(_FOREIGN, [_entry(4)])
    [found] = await store.list_session_summaries("project")
    assert found["session_id"] == "session"
    assert found["mtime"] > _SINCE_2001_MS, "mtime is in milliseconds"
    assert isinstance(found["data"], dict)
    assert found["data"].get("custom_title") == "second", "the summary is folded over all entries"
    if "list_sessions" in has:
        [listed] = await store.list_sessions("project")
        assert found["mtime"] >= listed["mtime"], "a summary is as new as its session"
    again = fold_session_summary(found, _MAIN, [_entry(5)])  # type: ignore[arg-type]
    assert (again["session_id"], again["mtime"]) == ("session", found["mtime"])
    await store.append(_ONE, [_entry(6, customTitle="sub-agent")])
    [after] = await store.list_session_summaries("project")
    assert after["data"] == found["data"], "a subpath does not change the summary"
    assert await store.list_session_summaries("never") == []
    if "delete" in has:
        await store.delete(_MAIN)
        assert await store.list_session_summaries("project") == []


async def _check_delete(store: Any, has: set[str]) -> None:
    await store.delete(_MAIN)  # nothing is there
    for key in (_MAIN, _ONE, _TWO, _OTHER, _FOREIGN):
        await store.append(key, [_entry(1)])
    await store.delete(_MAIN)
    for key in (_MAIN, _ONE, _TWO):
        assert await store.load(key) is None, f"{key} is deleted with its session"
    for key in (_OTHER, _FOREIGN):
        assert await store.load(key) == [_entry(1)], f"{key} stays"
    if "list_subkeys" in has:
        assert await store.list_subkeys(_MAIN) == []
    if "list_sessions" in has:
        assert [each["session_id"] for each in await store.list_sessions("project")] == ["other"]


async def _check_delete_subpath(store: Any, has: set[str]) -> None:
    for key in (_MAIN, _ONE, _TWO):
        await store.append(key, [_entry(1)])
    await store.delete(_ONE)
    assert await store.load(_ONE) is None
    assert await store.load(_TWO) == await store.load(_MAIN) == [_entry(1)], "only the subpath is deleted"
    if "list_subkeys" in has:
        assert await store.list_subkeys(_MAIN) == ["subagents/agent-2"]


async def _check_subkeys(store: Any, _: set[str]) -> None:
    await store.append(_OTHER, [_entry(1)])
    for key in (_MAIN, _ONE, _TWO, {**_FOREIGN, "subpath": "subagents/agent-x"}):
        await store.append(key, [_entry(1)])
    assert sorted(await store.list_subkeys(_MAIN)) == ["subagents/agent-1", "subagents/agent-2"]
    assert await store.list_subkeys(_OTHER) == [], "the main transcript has no subpath"
    assert await store.list_subkeys({**_MAIN, "session_id": "never"}) == []


_CHECKS: Final[dict[str, tuple[Callable[[Any, set[str]], Awaitable[None]], ...]]] = {
    "list_sessions": (_check_sessions,),
    "list_session_summaries": (_check_summaries,),
    "delete": (_check_delete, _check_delete_subpath),
    "list_subkeys": (_check_subkeys,),
}
