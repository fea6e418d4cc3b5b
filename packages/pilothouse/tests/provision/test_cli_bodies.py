"""The comparison of control bodies and hooks with a release of the CLI finds each planted difference."""

from __future__ import annotations

import pytest
from cli_bodies import BODIES, LEFT_OUT, UNDECLARED, find_members, find_sent_fields

HOOKS = "export declare const HOOK_EVENTS: readonly ['PreToolUse', 'PermissionRequest', 'Stop', 'PreNext', 'Later'];\n"

SENT = """
/**
 * A note: `    other?: string;` stands in no type.
 */
declare type SDKControlSetModelRequest = {
    subtype: 'set_model';
    model?: string | null;
    effort?: string;
};

declare type SDKControlStopTaskRequest = {
    subtype: 'stop_task';
};

declare type SDKControlMcpCallRequest = {
    subtype: 'mcp_call';
    tool: string;
    arguments?: Record<string, unknown>;
    soft_error_result?: boolean;
    expires_at?: string;
    timeout_ms?: number;
    result_not_for_model?: boolean;
    check_permissions?: boolean;
    input_files?: {
        name: string;
        lane_path: string;
    }[];
    output_files?: {
        name: string;
        lane_path: string;
        if_match?: string;
    }[];
};

declare type SDKControlSetColorRequest = {
    subtype: 'set_color';
    color: string;
};
"""
READ = """
export declare type AgentInfo = {
    name: string;
    description: string;
    color?: {
        inside: string;
    };
};
"""
ANSWERED = """
declare type SDKControlPermissionRequest = {
    subtype: 'can_use_tool';
    tool_name: string;
    input: Record<string, unknown>;
    mcp_server?: string;
    permission_suggestions?: string[];
    matched_ask_rule?: {
        source: string;
    };
    urgency: number;
};
declare type SDKControlElicitationRequest = {
    subtype: 'elicitation';
    mcp_server_name: string;
    message: string;
    deadline: string;
};
"""
ANSWERS = """
export declare type PermissionResult = {
    behavior: 'allow';
    updatedInput?: Record<string, unknown>;
    until?: string;
} | {
    behavior: 'deny';
    message: string;
    interrupt?: boolean;
};
"""
EVENTS = """
export declare type BaseHookInput = {
    session_id: string;
    transcript_path: string;
    cwd: string;
    prompt_id?: string;
    permission_mode?: string;
    agent_id?: string;
    agent_type?: string;
    machine?: string;
};
export declare type PreToolUseHookInput = BaseHookInput & {
    hook_event_name: 'PreToolUse';
    tool_name: string;
    tool_input: unknown;
    tool_use_id: string;
    agent_id?: string;
    risk: number;
};
"""
OUTPUTS = """
export declare type HookPermissionDecision = 'allow' | 'deny' | 'ask' | 'later';
export declare type PreToolUseHookSpecificOutput = {
    hookEventName: 'PreToolUse';
    permissionDecision?: HookPermissionDecision;
    permissionDecisionReason?: string;
    updatedInput?: Record<string, unknown>;
    note?: string;
};
"""
GATES = """
export declare type PermissionRequestHookSpecificOutput = {
    hookEventName: 'PermissionRequest';
    decision: {
        behavior: 'allow' | 'deny';
    };
};
export declare type LaterHookSpecificOutput = {
    hookEventName: 'Later';
    permissionDecision?: 'allow' | 'deny';
};
"""


SENT_DIFFERENCES = "+SDKControlSetModelRequest.effort -SDKControlStopTaskRequest.task_id"
ANSWERED_DIFFERENCES = "-SDKControlPermissionRequest.title -SDKControlPermissionRequest.tool_use_id"
INPUT_DIFFERENCES = "+PreToolUseHookInput.risk -PreToolUseHookInput.mcp_server"
OUTPUT_DIFFERENCES = (
    "+PreToolUse: later +PreToolUseHookSpecificOutput.note "
    "-PreToolUse: defer -PreToolUseHookSpecificOutput.additionalContext"
)


@pytest.mark.parametrize(
    ("title", "types", "about", "differences"),
    [
        ("requests that pilothouse sends", SENT, "SDKControl", SENT_DIFFERENCES),
        ("answers that it reads", READ, "AgentInfo", "+AgentInfo.color -AgentInfo.model"),
        ("requests that it answers", ANSWERED, "SDKControlElicitation", "+SDKControlElicitationRequest.deadline"),
        ("requests that it answers", ANSWERED, "SDKControlPermissionRequest.t", ANSWERED_DIFFERENCES),
        ("requests that it answers", ANSWERED, "SDKControlPermissionRequest.u", "+SDKControlPermissionRequest.urgency"),
        ("its answers", ANSWERS, "PermissionResult", "+PermissionResult.until -PermissionResult.updatedPermissions"),
        ("hook events", HOOKS + EVENTS, "BaseHookInput", "+BaseHookInput.machine -BaseHookInput.effort"),
        ("hook events", HOOKS + EVENTS, "PreToolUseHookInput", INPUT_DIFFERENCES),
        ("fields and decisions of hooks", HOOKS + OUTPUTS, "PreToolUse", OUTPUT_DIFFERENCES),
        ("hooks that gate", HOOKS + GATES, "P", "+PreNext -PreCompact -PreModelSwitch -PreSkillShellCommand"),
        ("hooks that gate", HOOKS + GATES, "L", "+Later"),
    ],
)
def test_a_planted_difference_is_found(title: str, types: str, about: str, differences: str) -> None:
    find, find_own = BODIES[title if title in BODIES else f"fields of {title}"]
    release, own = set(find(types)), set(find_own(types))
    found = [f"+{name}" for name in sorted(release - own)] + [f"-{name}" for name in sorted(own - release)]
    assert " ".join(each for each in found if each[1:].startswith(about)) == differences


def test_the_fields_of_requests_are_those_that_the_source_sends() -> None:
    sent = find_sent_fields()
    assert sent["set_permission_mode"] == {"mode"}
    assert sent["seed_read_state"] == {"path", "mtime"}
    assert sent["interrupt"] == {"cancel_queued"}
    assert {"hooks", "sdkMcpServers", "jsonSchema", "toolAliases", "supportedDialogKinds"} <= sent["initialize"]


def test_members_of_objects_inside_and_of_comments_are_no_fields() -> None:
    assert find_members(READ, "AgentInfo") == ["name", "description", "color"]
    assert find_members(SENT, "SDKControlSetModelRequest") == ["subtype", "model", "effort"]
    assert find_members(READ, "AgentInf") == []


def test_the_program_behind_the_types_has_no_fields() -> None:
    assert find_members(READ + "var x={\n    inside:1,\n}\n", "AgentInfo") == ["name", "description", "color"]


def test_what_is_left_out_is_neither_sent_nor_read() -> None:
    sent = find_sent_fields()
    assert "title" not in sent["initialize"]
    assert all(reason for reason in LEFT_OUT.values())
    assert not UNDECLARED & LEFT_OUT.keys()
