"""What pages and messages say that pilothouse does not do: where it is said, and what shows that it is so.

A sentence of a page with `cannot`, `not yet`, `reserved` and the like has to be in `PAGES_SAY`, and a message of the
source in `MESSAGES_SAY`. The proof is a test, by its file and name, or a function here, which raises when the limit is
gone.
Sentences about what failed (`… that cannot be read`, `cannot read FILE: why`) say when an error comes; they need none.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Callable, Iterator
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

Proof = str | Callable[[], None]

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


PAGES_SAY: dict[str, dict[str, Proof]] = {
    "design.md": {"other users cannot": other_users_see_no_environment},
    "fleet.md": {
        "A run whose files cannot be saved fails": "test_artifacts.py::test_no_key_is_shown",
    },
    "front-ends.md": {
        "A page cannot reach the route through a name of its own": (
            "test_mounted_routes.py::test_a_page_cannot_reach_a_route_through_a_name_of_its_own"
        ),
    },
    "host.md": {
        "a page cannot reach the host through a name of its own": (
            "test_rest.py::test_requests_need_a_token_and_an_allowed_origin"
        ),
        "or the session cannot continue, see below": (
            "test_host_restarts.py::test_sessions_of_the_host_go_on_after_it_was_killed"
        ),
        "the journal cannot be written or read": "test_host_journal.py::test_files_that_cannot_be_the_journal",
    },
    "options.md": {"other settings cannot loosen them": "real/test_options.py::test_what_restricts"},
    "remote.md": {"takes no more sessions for now": "test_host_websocket.py::test_no_more_sessions_than_the_limit"},
    "retries-and-timeouts.md": {
        "the API cannot be reached": "real/test_retry.py::test_an_api_that_cannot_be_reached_is_tried_again"
    },
    "stores.md": {
        "but cannot keep two hosts apart": (
            "test_mirror_writer.py::"
            "test_a_write_that_may_have_arrived_is_not_repeated_to_a_store_that_would_keep_it_twice"
        ),
        "A forked process cannot use it": "test_contract_processes.py::test_a_store_goes_on_after_a_fork",
    },
}
_NOT_HAD = "test_endpoints.py::test_what_an_endpoint_does_not_have"
_FIELDS = "test_request_fields.py"
_NOT_ANSWERED = "test_endpoints.py::test_requests_that_cannot_be_answered"
MESSAGES_SAY: dict[str, dict[str, Proof]] = {
    "pilothouse_remote.command": {
        "so it cannot be mounted": "test_commands.py::test_a_command_has_the_directory_of_its_run",
    },
    "pilothouse_doors.acp.agent": {
        "has a transport that is not supported": "test_acp.py::test_what_is_refused",
    },
    "pilothouse.client.child_supervisor": {
        "cannot change in a session": "test_controls.py::test_what_cannot_change_is_refused_at_once",
    },
    "pilothouse.client.session_settings": {
        "cannot change in a session": "test_controls.py::test_what_cannot_change_is_refused_at_once",
        "cannot be set for one query": "session/test_query_settings.py::test_what_no_query_can_have_for_itself",
    },
    "pilothouse.client.queries": {
        "its messages cannot be read again": (
            "test_structured_output.py::test_a_long_stream_keeps_what_the_numbers_need"
        )
    },
    "pilothouse_compat.claude_agent_sdk._options": {
        "Unsupported plugin type": "pilothouse-compat/tests/test_options.py::test_what_cannot_work_is_refused"
    },
    "pilothouse_compat.claude_agent_sdk._permissions": {
        "cannot be used with permission_prompt_tool_name": (
            "pilothouse-compat/tests/test_options.py::test_what_cannot_work_is_refused"
        )
    },
    "pilothouse.engine.incoming_requests": {
        "Unsupported control request": "test_incoming_requests.py::test_an_unknown_request_is_refused_at_once"
    },
    "pilothouse_models.endpoints.anthropic_messages": {
        "runs at Anthropic": _NOT_HAD,
        "cannot be begun for the model": f"{_FIELDS}::test_values_that_change_the_meaning_are_refused",
    },
    "pilothouse_models.endpoints.application": {
        "cannot continue each other's": "test_endpoints.py::test_an_agent_with_tools_of_its_own"
    },
    "pilothouse_models.endpoints.fields": {
        "older form is not supported": f"{_FIELDS}::test_a_field_that_changes_the_meaning_is_refused"
    },
    "pilothouse_models.endpoints.openai_chat": {"not supported": _NOT_ANSWERED},
    "pilothouse_models.endpoints.openai_responses": {"not supported": _NOT_HAD},
    "pilothouse_models.request": {
        "media_type: it cannot be detected": no_guessed_media_type,
        "cannot be sent": no_part_of_an_unknown_kind,
    },
    "pilothouse_native.engine": {
        "Unsupported control request": ("test_engine_wire.py::test_an_unknown_request_is_refused_and_never_left_open")
    },
    "pilothouse_native.turn": {"is not available": "test_engine_wire.py::test_another_model_steps_in"},
    "pilothouse_native.tools.search_tools": {"cannot go up behind a wildcard": no_pattern_goes_up_behind_a_wildcard},
    "pilothouse_native.tools.file_tools": {
        "Parts of a PDF cannot": no_pages_of_a_pdf,
        "not supported here": no_pages_of_a_pdf,
    },
    "pilothouse.options.table": {"other settings cannot loosen": "real/test_options.py::test_what_restricts"},
    "pilothouse_transcripts.stores.objects": {
        "the service cannot be reached": (
            "test_object_store.py::test_a_service_that_cannot_be_reached_is_reported_and_no_secret_is_shown"
        )
    },
    "pilothouse_transcripts.stores.redis": {"cannot save to its disk": a_full_disk_is_told},
    "pilothouse_transcripts.stores.sqlite": {
        "it cannot be opened": "test_sqlite_store.py::test_a_file_that_is_none_of_ours_is_left_alone"
    },
    "pilothouse_testing.fake_child": {"Unsupported control request": no_request_that_nobody_knows},
    "pilothouse_testing.mocks": {"Unsupported control request": no_request_that_nobody_knows},
    "pilothouse.tools.input_schema": {
        "a generator cannot be a tool": ("test_input_schemas.py::test_an_invalid_tool_is_reported_at_its_definition")
    },
    "pilothouse.transports.private_files": {"this system cannot run a child as another": no_other_users_here},
    "pilothouse.transports.start_errors": {
        "a name that cannot be passed on": "test_start_errors.py::test_start_errors_say_what_to_do"
    },
    "pilothouse_remote.websocket": {"the host is busy or not available (HTTP": a_busy_host_is_tried_again},
}
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
