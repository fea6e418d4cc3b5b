"""What pages and messages say that pilothouse does not do: where it is said, and what shows that it is so.

A sentence of a page with `cannot`, `not yet`, `reserved` and the like has to be in `stated_limits.toml`, and so has a
message of the source. The proof is a test, by its file and name, or a function here: it raises when the limit is gone.
Sentences about what failed (`… that cannot be read`, `cannot read FILE: why`) say when an error comes; they need none.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from markdown_pages import PAGES, name_page, prose
from places import module_name, source_files

from pilothouse.client import Agent
from pilothouse.errors import ControlError, OptionsError, UsageError
from pilothouse.transports.private_files import find_account
from pilothouse_models import LanguageModel
from pilothouse_native.tools import file_tools, search_tools
from pilothouse_native.tools.base import BuiltinToolError, Workplace
from pilothouse_remote.messages import ConnectionLostError
from pilothouse_remote.websocket import _make_status_error
from pilothouse_testing import FakeCLI, mock_transport
from pilothouse_transcripts.stores import redis

LEDGER = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PAGES_SAY: dict[str, dict[str, str]] = LEDGER["pages"]
MESSAGES_SAY: dict[str, dict[str, str]] = LEDGER["messages"]

LIMIT = re.compile(
    r"\bnot yet\b|\breserved\b|\bnot available\b|does not exist yet|\bnot supported\b|\bunsupported\b|"
    r"(?-i:\bUntil then\b)|\bfor now\b|\blater version\b|\bthere yet\b|\bthis version (?:cannot|has no)\b|\bcannot\b",
    re.IGNORECASE,
)
# "what cannot be read", "a host that cannot be reached": when an error comes.
_CONDITION = re.compile(r"\b(what|that|which|who|nobody|if|when|whether|unless|because)\b[^.;:|]{0,60}$", re.IGNORECASE)
_ERROR_TABLES = ("errors.md", "observability.md", "troubleshooting.md")
# "cannot read FILE: why", "… cannot be opened: why": what was tried, and did not work.
_REPORT = re.compile(r"^cannot|cannot (be )?\w+( \w+){0,7}(: |: ?$|$| $| %s)|: %s$", re.IGNORECASE)


def other_users_see_no_environment() -> None:
    path = Path("/proc/self/environ")
    assert not path.exists() or path.stat().st_mode & 0o077 == 0


def no_pattern_goes_up_behind_a_wildcard() -> None:
    with pytest.raises(BuiltinToolError, match="cannot go up"):
        search_tools._resolve_start("*/../x", ".", Workplace(Path.cwd(), env={}))


def no_pages_of_a_pdf() -> None:
    with pytest.raises(BuiltinToolError, match="Parts of a PDF"):
        file_tools._read_media(io.BytesIO(b"%PDF"), file_tools.PDF, Path("a.pdf"), 4, in_parts=True)


def no_guessed_media_type() -> None:
    with pytest.raises(UsageError, match="media_type"):
        LanguageModel().stream([{"role": "user", "content": [{"type": "file", "data": "AAAA"}]}])


def no_part_of_an_unknown_kind() -> None:
    output = [{"role": "user", "content": ["Look.", {"type": "hologram", "data": "AAAA"}]}]
    model = LanguageModel(transport=lambda: mock_transport("I see."))
    assert [warning.kind for warning in anyio.run(model.generate, output).warnings] == ["unsupported-part"]


def no_other_users_here() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pwd", None)
        with pytest.raises(OptionsError, match="cannot run a child as another user"):
            find_account("nobody")


def a_full_disk_is_told() -> None:
    assert "cannot save to its disk" in redis._ADVICE["MISCONF"]


async def _ask_for_what_nobody_knows(cli: str) -> None:
    async with Agent(cli=cli).session() as session:
        with pytest.raises(ControlError, match="Unsupported control request subtype: nonsense"):
            await session.control("nonsense")
    async with Agent(transport=mock_transport).session() as session:
        with pytest.raises(ControlError, match="Unsupported control request subtype: nonsense"):
            await session.control("nonsense")


def no_request_that_nobody_knows() -> None:
    with FakeCLI().text("fine") as fake:
        anyio.run(_ask_for_what_nobody_knows, fake.path)


def a_busy_host_is_tried_again() -> None:
    assert isinstance(_make_status_error(503), ConnectionLostError)
    assert not isinstance(_make_status_error(403), ConnectionLostError)


# What the model is told, and what another library says, is no message of pilothouse.
_NO_MESSAGES = frozenset({"pilothouse_native.prompts", "pilothouse.client.structured_output"})


def limits_of_pages() -> Iterator[tuple[str, str]]:
    """Each page with what it says around a limit."""
    for page in PAGES:
        text = re.sub(r"[ \t]*\n(?!\n|\||-|#|├|│|└)[ \t]*", " ", prose(page))
        for match in LIMIT.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1 :]
            before = text[max(0, match.start() - 70) : match.start()]
            is_error = page.name in _ERROR_TABLES and line.startswith(("├", "│", "└", "| ", "- `"))
            if match[0].lower() != "cannot" or not (is_error or _CONDITION.search(before)):
                yield name_page(page), text[max(0, match.start() - 60) : match.end() + 60]


def limits_of_messages() -> Iterator[tuple[str, str]]:
    """Each file of the source with a text in it, docstrings left out, that tells of a limit."""
    for path in source_files():
        tree = ast.parse(path.read_text("utf-8"))
        reported = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in reported:
                name = module_name(path)
                is_limit = " " in node.value and LIMIT.search(node.value) and not _REPORT.search(node.value)
                if is_limit and name not in _NO_MESSAGES:
                    yield name, node.value
