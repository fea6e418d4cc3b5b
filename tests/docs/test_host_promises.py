"""Each line of the page on what a host promises, and the tests that carry it."""

from __future__ import annotations

import ast
import re

import pytest
from markdown_pages import DOCS
from places import ROOT

HOST_TESTS = ROOT / "packages" / "pilothouse-host" / "tests" / "server"
LIMITS, CONFINED, LAUNCH = "test_client_limits", "test_confined_sessions", "test_launch_policy"
# The first words of each line: the tests in `HOST_TESTS` that fail if it is not so.
PROMISES: dict[str, tuple[str, ...]] = {
    "Without a token": (
        "test_rest::test_requests_need_a_token_and_an_allowed_origin",
        "test_console_files::test_the_files_need_no_token_and_load_nothing_from_elsewhere",
    ),
    "A session works below a root": (
        f"{LAUNCH}::test_what_is_refused",
        f"{LAUNCH}::test_links_between_roots_and_relative_places",
    ),
    "A client sets options": (
        f"{CONFINED}::test_no_variable_runs_a_program",
        f"{LAUNCH}::test_every_option_is_the_clients_or_the_hosts",
        f"{LAUNCH}::test_every_variable_that_options_send_is_taken",
    ),
    "The child gets a permission mode": (
        f"{CONFINED}::test_a_repository_does_not_lift_the_permission_mode",
        f"{LAUNCH}::test_what_owners_of_further_tokens_start_with",
    ),
    "A child that reports a higher": (f"{CONFINED}::test_a_child_above_the_limit_is_ended_before_its_prompt",),
    "The key of the host": (
        f"{LIMITS}::test_the_key_of_the_host_does_not_reach_an_address_of_a_client",
        f"{LAUNCH}::test_the_key_of_the_host_does_not_go_to_another_api",
    ),
    "A child does not get the token": (f"{LAUNCH}::test_what_a_program_renders_is_taken",),
    'An answer of "yes, always"': ("test_host_approvals::test_always_goes_no_further_than_the_limits_of_clients",),
    "It lists, reads, steers": (
        f"{LIMITS}::test_each_token_sees_its_own_sessions",
        "test_host_approvals::test_a_token_sees_and_settles_only_its_own_asks",
    ),
    "It resumes a conversation": (f"{LIMITS}::test_an_owner_goes_on_only_with_what_it_can_name",),
    "It reads no transcripts": (
        "test_console_files::test_a_conversation_on_disk_is_renamed_archived_and_removed",
        "test_host_reports::test_transcripts_and_usage_of_the_real_cli",
        "test_host_reports::test_fleets_are_shown_with_their_runs",
    ),
    "Its sessions load the settings of the host": (
        f"{CONFINED}::test_files_that_a_session_writes_start_nothing",
        f"{CONFINED}::test_the_operators_own_sessions_load_the_settings_of_the_project",
        f"{LAUNCH}::test_what_owners_of_further_tokens_start_with",
    ),
    "Its sessions neither read nor write": (
        f"{CONFINED}::test_sessions_of_clients_share_no_memory",
        f"{LAUNCH}::test_sessions_of_clients_have_no_memory_of_a_directory",
    ),
    "Its prompts are sent as they are": (
        f"{CONFINED}::test_prompts_of_clients_read_no_file_and_run_no_command",
        f"{LAUNCH}::test_what_owners_of_further_tokens_start_with",
    ),
    'A "yes" of its own': (f"{LAUNCH}::test_yes_to_a_call_changes_no_settings_file",),
    "Its sessions load the settings and the": (
        f"{CONFINED}::test_the_operators_own_sessions_load_the_settings_of_the_project",
    ),
    "Over REST, it may ask": (f"{CONFINED}::test_prompts_of_clients_read_no_file_and_run_no_command",),
    "`--max-permission-mode`": (
        f"{LAUNCH}::test_what_an_operator_does_not_let_clients_have",
        f"{LAUNCH}::test_requests_above_the_limits",
        f"{LIMITS}::test_a_request_above_the_limits_is_answered_and_the_session_goes_on",
    ),
    "`--no-client-programs`": (
        f"{CONFINED}::test_files_that_a_session_writes_start_nothing",
        f"{CONFINED}::test_the_limits_also_hold_where_the_operator_loads_project_settings",
        f"{LAUNCH}::test_handshakes_with_fields_that_no_list_has",
    ),
    "`--no-client-mcp`": (
        f"{CONFINED}::test_the_limits_also_hold_where_the_operator_loads_project_settings",
        f"{CONFINED}::test_tools_and_hooks_of_the_client_work_under_all_limits",
    ),
    "`--no-client-settings`": ("test_serve_command::test_limits_and_tokens_of_the_command",),
    "Any of them": (
        f"{CONFINED}::test_a_session_cannot_change_the_settings_of_the_user",
        f"{CONFINED}::test_sessions_of_clients_share_no_memory",
    ),
}


def test_every_line_has_its_tests() -> None:
    text = (DOCS / "host-promises.md").read_text("utf-8")
    lines = [line.removeprefix("- ") for line in re.findall(r"^- .*", text, re.MULTILINE)]
    assert len(lines) == len(PROMISES)
    for line, start in zip(lines, PROMISES, strict=True):
        assert line.startswith(start), line


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_line_exist(promise: str) -> None:
    for test in PROMISES[promise]:
        module, _, name = test.partition("::")
        tree = ast.parse((HOST_TESTS / f"{module}.py").read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, test
