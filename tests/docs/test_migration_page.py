"""Every right-hand side of "Coming from …" runs, and needs no name that the page does not give it."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, cast

import anyio
import anyio.to_thread
import pytest
from markdown_pages import DOCS, blocks

import pilothouse as ph
from pilothouse.messages import from_dict
from pilothouse_models import LanguageModel
from pilothouse_testing import FakeCLI, as_default, frames, mock_transport

PAGE = DOCS / "coming-from.md"
SYSTEMS = {
    "claude-agent-sdk, Python", "claude-agent-sdk, TypeScript", "Laravel, PHP", "The AI SDK, TypeScript", "Ruby",
    "Elixir", "Go",
}  # fmt: skip
STRUCTURED = {"number": "7"}
CONTROLS: dict[str, dict[str, Any]] = {
    "get_context_usage": {"categories": [], "totalTokens": 1},
    "get_settings": {"effective": {}},
    "list_models": {"models": [{"value": "haiku", "displayName": "Haiku", "description": "small"}]},
    "mcp_reconnect": {},
    "mcp_set_servers": {"added": ["files"], "removed": [], "errors": {}},
    "mcp_status": {"mcpServers": [{"name": "files", "status": "connected"}]},
    "mcp_toggle": {},
    "rewind_files": {"canRewind": True},
    "set_max_thinking_tokens": {},
    "set_model": {},
    "set_permission_mode": {"mode": "plan"},
    "stop_task": {},
}
"""What the child of a session answers."""


class Row(NamedTuple):
    """One row of a table: where it is, and the code spans of its right-hand cell, each a line of Python."""

    system: str
    line: int
    ours: tuple[str, ...]


def read_rows() -> Iterator[Row]:
    heading, inside = "", False
    for number, line in enumerate(PAGE.read_text("utf-8").splitlines(), 1):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif not inside:
            inside = cells[-1] == "pilothouse"
        elif not set(cells[-1]) <= set("-: "):
            assert len(cells) == 2, f"line {number} has {len(cells)} cells"
            yield Row(heading, number, tuple(re.findall(r"`([^`]+)`", cells[-1])))


ROWS = list(read_rows())


def used_names(code: str) -> set[str]:
    """Names that `code` expects to be there."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    return {n.id for n in names} - {n.id for n in names if isinstance(n.ctx, ast.Store)}


@dataclass
class Invoice:
    number: str


def answer() -> list[dict[str, Any]]:
    return [*frames.sample_messages()[:-1], frames.result("It printed hi.", structured_output=STRUCTURED)]


def failure() -> ph.RateLimitError:
    error = ph.RateLimitError("too many", api_error_status=429)
    error.__cause__ = ExceptionGroup("", [ph.CLINotFoundError("none"), ph.QueryTimeout("late")])
    return error


def check(*_: object) -> None:
    """Takes whatever a callback is called with."""


def add(a: int, b: int) -> int:
    return a + b


def make_names() -> dict[str, Any]:
    """The names that the page gives its code, but for `query` and `session`."""
    output = answer()
    return {
        "prompt": "Explain this project",
        "prompts": (text for text in ("My name is Alice.", "What is my name?")),
        "options": ph.Options(model="haiku"),
        "agent": ph.Agent(max_turns=7),
        "result": ph.QueryResult(from_dict(frame) for frame in output),
        "message": from_dict(output[0]),
        "error": failure(),
        "line": frames.lines([output[2]]).rstrip(b"\n"),
        "frame": output[2],
        "schema": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
        "Invoice": Invoice,
        "show": check,
        "request": ph.PermissionRequest(tool_name="Bash", tool_input={"command": "ls"}),
        "may": check,
        "check": check,
        "add": add,
        "model": LanguageModel("haiku"),
    }


@pytest.fixture
def names(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the code sees; a CLI answers it."""
    (tmp_path / "chart.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.chdir(tmp_path)
    with FakeCLI().turn(*answer()).forever() as fake, as_default():
        monkeypatch.setenv("PILOTHOUSE_CLI", fake.path)
        yield make_names()


@asynccontextmanager
async def running_query(code: str) -> AsyncGenerator[ph.Query]:
    """A query that is being answered; the answer ends when it is interrupted, if `code` stops it."""
    fake = FakeCLI().turn(*answer())
    if stops := "interrupt" in code or "aclose" in code:
        fake = FakeCLI().expect("user").emit(frames.init(), frames.assistant("Once upon a time"))
        fake.expect("control_request", "interrupt").reply({"still_queued": []})
        fake.emit(frames.result("", terminal_reason="aborted_streaming"))
    with fake:
        async with ph.query("Explain this project", cli=fake.path) as query:
            if stops:
                await anext(aiter(query))
            yield query


@asynccontextmanager
async def running_session() -> AsyncGenerator[ph.Session]:
    """A session that has answered one question."""
    transport = mock_transport(*[answer()] * 6, **CONTROLS)
    async with ph.Agent(transport=lambda: transport).session() as session:
        await session.query("My name is Alice.")
        yield session


async def execute(code: CodeType, namespace: dict[str, Any]) -> None:
    if code.co_flags & inspect.CO_COROUTINE:
        await cast("Awaitable[object]", eval(code, namespace))
    elif "sync" in code.co_names:  # it blocks
        await anyio.to_thread.run_sync(eval, code, namespace)
    else:
        eval(code, namespace)


async def run_row(row: Row, names: dict[str, Any]) -> None:
    (preamble,) = blocks(PAGE, "python")
    exec(preamble.compiled(), names)
    for text in row.ours:
        code = compile(text, text, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        try:
            if "session" in used_names(text):
                async with running_session() as session:
                    await execute(code, {**names, **make_names(), "session": session})
            elif "query" in used_names(text):
                async with running_query(text) as query:
                    await execute(code, names | {"query": query})
            else:
                await execute(code, names)
        except Exception as error:
            error.add_note(f"line {row.line}: {text}")
            raise


def test_every_system_has_a_table() -> None:
    assert {row.system for row in ROWS} == SYSTEMS
    assert all(row.ours for row in ROWS)


def test_the_page_says_which_names_it_uses() -> None:
    (preamble,) = blocks(PAGE, "python")
    imported: dict[str, Any] = {}
    exec(preamble.compiled(), imported)
    own = {*make_names(), "query", "session"}
    told = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert own <= set(re.findall(r"`(\w+)`", " ".join(told)))
    for code in (code for row in ROWS for code in row.ours):
        assert not used_names(code) - set(imported) - own - set(vars(builtins)), code


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.system}:{row.line}")
def test_a_right_hand_side_runs(row: Row, names: dict[str, Any]) -> None:
    anyio.run(run_row, row, names)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ph.no_such_name", AttributeError),
        ("no_such_name.text", NameError),
        ("await ph.query(prompt, maxTurns=5)", ph.OptionsError),
        ("await session.no_such_method()", AttributeError),
    ],
)
def test_a_wrong_right_hand_side_is_found(code: str, expected: type[Exception], names: dict[str, Any]) -> None:
    with pytest.raises(expected):
        anyio.run(run_row, Row("nowhere", 0, (code,)), names)
