"""The names of `claude_agent_sdk` 0.2.189, on pilothouse.

    from pilothouse_compat import claude_agent_sdk as sdk

`docs/drop-in.md` says how programs run unchanged, and what differs. What needs an event loop, a store or `mcp` is
loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._errors import (
    ClaudeSDKError,
    CLIConnectionError,
    CLIJSONDecodeError,
    CLINotFoundError,
    ProcessError,
    ResultError,
)
from ._internal.transport import Transport
from ._version import __version__
from .client import ClaudeSDKClient
from .query import query
from .types import *

if TYPE_CHECKING:
    from mcp.types import ToolAnnotations

    from ._internal.session_mutations import (
        delete_session_via_store,
        fork_session_via_store,
        get_session_info_from_store,
        get_session_messages_from_store,
        get_subagent_messages_from_store,
        import_session_to_store,
        list_sessions_from_store,
        list_subagents_from_store,
        rename_session_via_store,
        tag_session_via_store,
    )
    from ._internal.session_store import (
        InMemorySessionStore,
        fold_session_summary,
        project_key_for_directory,
    )
    from ._internal.sessions import (
        ForkSessionResult,
        delete_session,
        fork_session,
        get_session_info,
        get_session_messages,
        get_subagent_messages,
        list_sessions,
        list_subagents,
        rename_session,
        tag_session,
    )
    from ._tools import SdkMcpTool, create_sdk_mcp_server, tool

_LAZY = {
    "_internal.session_mutations": (
        "delete_session_via_store", "fork_session_via_store", "get_session_info_from_store",
        "get_session_messages_from_store", "get_subagent_messages_from_store", "import_session_to_store",
        "list_sessions_from_store", "list_subagents_from_store", "rename_session_via_store", "tag_session_via_store",
    ),
    "_internal.session_store": ("InMemorySessionStore", "fold_session_summary", "project_key_for_directory"),
    "_internal.sessions": (
        "ForkSessionResult", "delete_session", "fork_session", "get_session_info", "get_session_messages",
        "get_subagent_messages", "list_sessions", "list_subagents", "rename_session", "tag_session",
    ),
    "_tools": ("SdkMcpTool", "create_sdk_mcp_server", "tool"),
}  # fmt: skip
_MODULES = {name: f"{__name__}.{module}" for module, names in _LAZY.items() for name in names}
_TOOL_ANNOTATIONS = "ToolAnnotations"

__all__ = [
    "TERMINAL_TASK_STATUSES", "AgentDefinition", "AssistantMessage", "BackgroundTaskSummary", "BaseHookInput",
    "CLIConnectionError", "CLIJSONDecodeError", "CLINotFoundError", "CanUseTool", "CanUseToolShadowedWarning",
    "ClaudeAgentOptions", "ClaudeSDKClient", "ClaudeSDKError", "ContentBlock", "ContextUsageCategory",
    "ContextUsageResponse", "ConversationResetMessage", "CwdChangedHookSpecificOutput", "DeferredToolUse",
    "EffortLevel", "ElicitationHookSpecificOutput", "ElicitationResultHookSpecificOutput", "FastModeDisabledReason",
    "FastModeState", "FileChangedHookSpecificOutput", "ForkSessionResult", "HookCallback", "HookContext", "HookEffort",
    "HookEventMessage", "HookInput", "HookJSONOutput", "HookMatcher", "InMemorySessionStore", "McpSdkServerConfig",
    "McpServerConfig", "McpServerConnectionStatus", "McpServerInfo", "McpServerStatus", "McpServerStatusConfig",
    "McpStatusResponse", "McpToolAnnotations", "McpToolInfo", "Message", "MessageDisplayHookSpecificOutput",
    "MessageOrigin", "MessageOriginKind", "MirrorErrorMessage", "ModelUsage", "NotificationHookInput",
    "NotificationHookSpecificOutput", "PermissionDeniedHookSpecificOutput", "PermissionMode",
    "PermissionRequestHookInput", "PermissionRequestHookSpecificOutput", "PermissionResult", "PermissionResultAllow",
    "PermissionResultDeny", "PermissionUpdate", "PostModelSwitchHookSpecificOutput", "PostToolBatchHookSpecificOutput",
    "PostToolUseFailureHookInput", "PostToolUseFailureHookSpecificOutput", "PostToolUseHookInput",
    "PostToolUseHookSpecificOutput", "PreCompactHookInput", "PreModelSwitchHookSpecificOutput", "PreToolUseHookInput",
    "PreToolUseHookSpecificOutput", "ProcessError", "RateLimitEvent", "RateLimitInfo", "RateLimitStatus",
    "RateLimitType", "ResultError", "ResultMessage", "SDKSessionInfo", "SandboxIgnoreViolations",
    "SandboxNetworkConfig", "SandboxSettings", "SdkBeta", "SdkMcpTool", "SdkPluginConfig", "ServerToolName",
    "ServerToolResultBlock", "ServerToolUseBlock", "SessionCronSummary", "SessionKey", "SessionListSubkeysKey",
    "SessionMessage", "SessionStartHookSpecificOutput", "SessionStore", "SessionStoreEntry", "SessionStoreFlushMode",
    "SessionStoreListEntry", "SessionSummaryEntry", "SettingSource", "StopHookInput", "StopHookSpecificOutput",
    "StreamEvent", "SubagentStartHookInput", "SubagentStartHookSpecificOutput", "SubagentStopHookInput",
    "SubagentStopHookSpecificOutput", "SystemInitData", "SystemInitMcpServer", "SystemInitPlugin",
    "SystemInitPluginError", "SystemMessage", "TaskBudget", "TaskNotificationMessage", "TaskNotificationOriginSubkind",
    "TaskNotificationStatus", "TaskProgressMessage", "TaskStartedMessage", "TaskUpdatedMessage", "TaskUpdatedStatus",
    "TaskUsage", "TextBlock", "ThinkingBlock", "ThinkingConfig", "ThinkingConfigAdaptive", "ThinkingConfigDisabled",
    "ThinkingConfigEnabled", "ToolAnnotations", "ToolPermissionContext", "ToolResultBlock", "ToolUseBlock", "Transport",
    "UserMessage", "UserPromptExpansionHookSpecificOutput", "UserPromptSubmitHookInput",
    "UserPromptSubmitHookSpecificOutput", "WorktreeCreateHookSpecificOutput", "__version__", "create_sdk_mcp_server",
    "delete_session", "delete_session_via_store", "fold_session_summary", "fork_session", "fork_session_via_store",
    "get_session_info", "get_session_info_from_store", "get_session_messages", "get_session_messages_from_store",
    "get_subagent_messages", "get_subagent_messages_from_store", "import_session_to_store", "list_sessions",
    "list_sessions_from_store", "list_subagents", "list_subagents_from_store", "project_key_for_directory", "query",
    "rename_session", "rename_session_via_store", "tag_session", "tag_session_via_store", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == _TOOL_ANNOTATIONS:
        from ._tools import load_tool_annotations

        return load_tool_annotations()
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    text = f"module {__name__!r} has no attribute {name!r}"
    if not name.startswith("_"):
        text += f": it has the names of claude_agent_sdk {__version__}; a newer version may have added this one"
    raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted(__all__)
