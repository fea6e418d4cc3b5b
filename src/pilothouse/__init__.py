"""Steer Claude Code, the `claude` command-line agent, from Python.

    import pilothouse as ph

    result = await ph.query("What does this repository do?")
    print(result.text)

The public names; nothing else. Each is loaded when it is first used, so that importing the package costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pilothouse._version import __version__ as __version__

if TYPE_CHECKING:
    from pilothouse.client import Agent as Agent
    from pilothouse.client import AnswerEvent as AnswerEvent
    from pilothouse.client import AnswerFinished as AnswerFinished
    from pilothouse.client import AnswerStarted as AnswerStarted
    from pilothouse.client import Query as Query
    from pilothouse.client import QueryResult as QueryResult
    from pilothouse.client import Retrying as Retrying
    from pilothouse.client import TextAdded as TextAdded
    from pilothouse.client import TextWithdrawn as TextWithdrawn
    from pilothouse.client import ThinkingAdded as ThinkingAdded
    from pilothouse.client import ToolFinished as ToolFinished
    from pilothouse.client import ToolStarted as ToolStarted
    from pilothouse.client import configure as configure
    from pilothouse.client import document as document
    from pilothouse.client import image as image
    from pilothouse.client import query as query
    from pilothouse.errors import AuthenticationError as AuthenticationError
    from pilothouse.errors import BudgetError as BudgetError
    from pilothouse.errors import CLIExitedError as CLIExitedError
    from pilothouse.errors import CLINotFoundError as CLINotFoundError
    from pilothouse.errors import CLIStartError as CLIStartError
    from pilothouse.errors import CLIVersionError as CLIVersionError
    from pilothouse.errors import ContextOverflowError as ContextOverflowError
    from pilothouse.errors import ControlError as ControlError
    from pilothouse.errors import ControlTimeout as ControlTimeout
    from pilothouse.errors import ExecutionError as ExecutionError
    from pilothouse.errors import Interrupted as Interrupted
    from pilothouse.errors import InvalidModelError as InvalidModelError
    from pilothouse.errors import LineDecodeError as LineDecodeError
    from pilothouse.errors import MaxTurnsError as MaxTurnsError
    from pilothouse.errors import MessageParseError as MessageParseError
    from pilothouse.errors import OptionsError as OptionsError
    from pilothouse.errors import OverloadedError as OverloadedError
    from pilothouse.errors import OversizeLineError as OversizeLineError
    from pilothouse.errors import PeerError as PeerError
    from pilothouse.errors import PilothouseError as PilothouseError
    from pilothouse.errors import ProcessError as ProcessError
    from pilothouse.errors import ProtocolError as ProtocolError
    from pilothouse.errors import ProvisionError as ProvisionError
    from pilothouse.errors import QueryTimeout as QueryTimeout
    from pilothouse.errors import QuotaError as QuotaError
    from pilothouse.errors import RateLimitError as RateLimitError
    from pilothouse.errors import RefusalError as RefusalError
    from pilothouse.errors import ResultError as ResultError
    from pilothouse.errors import SessionClosedError as SessionClosedError
    from pilothouse.errors import SessionNotFoundError as SessionNotFoundError
    from pilothouse.errors import StructuredOutputError as StructuredOutputError
    from pilothouse.errors import ToolDefinitionError as ToolDefinitionError
    from pilothouse.errors import UsageError as UsageError
    from pilothouse.errors import find_cause as find_cause
    from pilothouse.local import LocalModel as LocalModel
    from pilothouse.messages import ActiveGoalMessage as ActiveGoalMessage
    from pilothouse.messages import AdvisorToolResultBlock as AdvisorToolResultBlock
    from pilothouse.messages import ApiRetryMessage as ApiRetryMessage
    from pilothouse.messages import AssistantMessage as AssistantMessage
    from pilothouse.messages import AuthStatusMessage as AuthStatusMessage
    from pilothouse.messages import BackgroundTasksChangedMessage as BackgroundTasksChangedMessage
    from pilothouse.messages import BashCodeExecutionToolResultBlock as BashCodeExecutionToolResultBlock
    from pilothouse.messages import CodeExecutionToolResultBlock as CodeExecutionToolResultBlock
    from pilothouse.messages import CommandLifecycleMessage as CommandLifecycleMessage
    from pilothouse.messages import CommandsChangedMessage as CommandsChangedMessage
    from pilothouse.messages import CompactBoundaryMessage as CompactBoundaryMessage
    from pilothouse.messages import CompactionBlock as CompactionBlock
    from pilothouse.messages import ContainerUploadBlock as ContainerUploadBlock
    from pilothouse.messages import ContentBlock as ContentBlock
    from pilothouse.messages import ControlRequestProgressMessage as ControlRequestProgressMessage
    from pilothouse.messages import ConversationResetMessage as ConversationResetMessage
    from pilothouse.messages import DocumentBlock as DocumentBlock
    from pilothouse.messages import DoneMessage as DoneMessage
    from pilothouse.messages import ElicitationCompleteMessage as ElicitationCompleteMessage
    from pilothouse.messages import FilesPersistedMessage as FilesPersistedMessage
    from pilothouse.messages import HookProgressMessage as HookProgressMessage
    from pilothouse.messages import HookResponseMessage as HookResponseMessage
    from pilothouse.messages import HookStartedMessage as HookStartedMessage
    from pilothouse.messages import ImageBlock as ImageBlock
    from pilothouse.messages import InformationalMessage as InformationalMessage
    from pilothouse.messages import InitMessage as InitMessage
    from pilothouse.messages import KeepAliveMessage as KeepAliveMessage
    from pilothouse.messages import LocalCommandOutputMessage as LocalCommandOutputMessage
    from pilothouse.messages import McpToolResultBlock as McpToolResultBlock
    from pilothouse.messages import McpToolUseBlock as McpToolUseBlock
    from pilothouse.messages import MemoryRecallMessage as MemoryRecallMessage
    from pilothouse.messages import Message as Message
    from pilothouse.messages import MirrorErrorMessage as MirrorErrorMessage
    from pilothouse.messages import ModelConsentFallbackMessage as ModelConsentFallbackMessage
    from pilothouse.messages import ModelFallbackMessage as ModelFallbackMessage
    from pilothouse.messages import ModelRefusalFallbackMessage as ModelRefusalFallbackMessage
    from pilothouse.messages import ModelRefusalNoFallbackMessage as ModelRefusalNoFallbackMessage
    from pilothouse.messages import ModelUsage as ModelUsage
    from pilothouse.messages import NotificationMessage as NotificationMessage
    from pilothouse.messages import PermissionDenial as PermissionDenial
    from pilothouse.messages import PermissionDeniedMessage as PermissionDeniedMessage
    from pilothouse.messages import PluginInstallMessage as PluginInstallMessage
    from pilothouse.messages import PromptSuggestionMessage as PromptSuggestionMessage
    from pilothouse.messages import RateLimitEvent as RateLimitEvent
    from pilothouse.messages import RateLimitInfo as RateLimitInfo
    from pilothouse.messages import RedactedThinkingBlock as RedactedThinkingBlock
    from pilothouse.messages import ResultMessage as ResultMessage
    from pilothouse.messages import SearchResultBlock as SearchResultBlock
    from pilothouse.messages import ServerToolResultBlock as ServerToolResultBlock
    from pilothouse.messages import ServerToolUseBlock as ServerToolUseBlock
    from pilothouse.messages import SessionStateChangedMessage as SessionStateChangedMessage
    from pilothouse.messages import SessionTitleChangedMessage as SessionTitleChangedMessage
    from pilothouse.messages import SessionWritesLostMessage as SessionWritesLostMessage
    from pilothouse.messages import StatusMessage as StatusMessage
    from pilothouse.messages import StopHookSummaryMessage as StopHookSummaryMessage
    from pilothouse.messages import StreamEvent as StreamEvent
    from pilothouse.messages import SystemMessage as SystemMessage
    from pilothouse.messages import TaskNotificationMessage as TaskNotificationMessage
    from pilothouse.messages import TaskProgressMessage as TaskProgressMessage
    from pilothouse.messages import TaskStartedMessage as TaskStartedMessage
    from pilothouse.messages import TaskSummaryMessage as TaskSummaryMessage
    from pilothouse.messages import TaskUpdatedMessage as TaskUpdatedMessage
    from pilothouse.messages import TextBlock as TextBlock
    from pilothouse.messages import TextEditorToolResultBlock as TextEditorToolResultBlock
    from pilothouse.messages import ThinkingBlock as ThinkingBlock
    from pilothouse.messages import ThinkingTokensMessage as ThinkingTokensMessage
    from pilothouse.messages import ToolProgressMessage as ToolProgressMessage
    from pilothouse.messages import ToolReferenceBlock as ToolReferenceBlock
    from pilothouse.messages import ToolResultBlock as ToolResultBlock
    from pilothouse.messages import ToolSearchToolResultBlock as ToolSearchToolResultBlock
    from pilothouse.messages import ToolUseBlock as ToolUseBlock
    from pilothouse.messages import ToolUseSummaryMessage as ToolUseSummaryMessage
    from pilothouse.messages import TranscriptMirrorMessage as TranscriptMirrorMessage
    from pilothouse.messages import TurnDurationMessage as TurnDurationMessage
    from pilothouse.messages import TurnPreemptedMessage as TurnPreemptedMessage
    from pilothouse.messages import UiInvalidateMessage as UiInvalidateMessage
    from pilothouse.messages import UnknownBlock as UnknownBlock
    from pilothouse.messages import UnknownMessage as UnknownMessage
    from pilothouse.messages import Usage as Usage
    from pilothouse.messages import UserMessage as UserMessage
    from pilothouse.messages import WebFetchToolResultBlock as WebFetchToolResultBlock
    from pilothouse.messages import WebSearchToolResultBlock as WebSearchToolResultBlock
    from pilothouse.messages import WorkerShuttingDownMessage as WorkerShuttingDownMessage
    from pilothouse.options import Options as Options
    from pilothouse.transports import CliTransport as CliTransport
    from pilothouse.transports import Transport as Transport

_ROOMS: dict[str, tuple[str, ...]] = {
    "client": (
        "Agent",
        "AnswerEvent",
        "AnswerFinished",
        "AnswerStarted",
        "Query",
        "QueryResult",
        "Retrying",
        "TextAdded",
        "TextWithdrawn",
        "ThinkingAdded",
        "ToolFinished",
        "ToolStarted",
        "configure",
        "document",
        "image",
        "query",
    ),
    "errors": (
        "AuthenticationError",
        "BudgetError",
        "CLIExitedError",
        "CLINotFoundError",
        "CLIStartError",
        "CLIVersionError",
        "ContextOverflowError",
        "ControlError",
        "ControlTimeout",
        "ExecutionError",
        "Interrupted",
        "InvalidModelError",
        "LineDecodeError",
        "MaxTurnsError",
        "MessageParseError",
        "OptionsError",
        "OverloadedError",
        "OversizeLineError",
        "PeerError",
        "PilothouseError",
        "ProcessError",
        "ProtocolError",
        "ProvisionError",
        "QueryTimeout",
        "QuotaError",
        "RateLimitError",
        "RefusalError",
        "ResultError",
        "SessionClosedError",
        "SessionNotFoundError",
        "StructuredOutputError",
        "ToolDefinitionError",
        "UsageError",
        "find_cause",
    ),
    "local": ("LocalModel",),
    "messages": (
        "ActiveGoalMessage",
        "AdvisorToolResultBlock",
        "ApiRetryMessage",
        "AssistantMessage",
        "AuthStatusMessage",
        "BackgroundTasksChangedMessage",
        "BashCodeExecutionToolResultBlock",
        "CodeExecutionToolResultBlock",
        "CommandLifecycleMessage",
        "CommandsChangedMessage",
        "CompactBoundaryMessage",
        "CompactionBlock",
        "ContainerUploadBlock",
        "ContentBlock",
        "ControlRequestProgressMessage",
        "ConversationResetMessage",
        "DocumentBlock",
        "DoneMessage",
        "ElicitationCompleteMessage",
        "FilesPersistedMessage",
        "HookProgressMessage",
        "HookResponseMessage",
        "HookStartedMessage",
        "ImageBlock",
        "InformationalMessage",
        "InitMessage",
        "KeepAliveMessage",
        "LocalCommandOutputMessage",
        "McpToolResultBlock",
        "McpToolUseBlock",
        "MemoryRecallMessage",
        "Message",
        "MirrorErrorMessage",
        "ModelConsentFallbackMessage",
        "ModelFallbackMessage",
        "ModelRefusalFallbackMessage",
        "ModelRefusalNoFallbackMessage",
        "ModelUsage",
        "NotificationMessage",
        "PermissionDenial",
        "PermissionDeniedMessage",
        "PluginInstallMessage",
        "PromptSuggestionMessage",
        "RateLimitEvent",
        "RateLimitInfo",
        "RedactedThinkingBlock",
        "ResultMessage",
        "SearchResultBlock",
        "ServerToolResultBlock",
        "ServerToolUseBlock",
        "SessionStateChangedMessage",
        "SessionTitleChangedMessage",
        "SessionWritesLostMessage",
        "StatusMessage",
        "StopHookSummaryMessage",
        "StreamEvent",
        "SystemMessage",
        "TaskNotificationMessage",
        "TaskProgressMessage",
        "TaskStartedMessage",
        "TaskSummaryMessage",
        "TaskUpdatedMessage",
        "TextBlock",
        "TextEditorToolResultBlock",
        "ThinkingBlock",
        "ThinkingTokensMessage",
        "ToolProgressMessage",
        "ToolReferenceBlock",
        "ToolResultBlock",
        "ToolSearchToolResultBlock",
        "ToolUseBlock",
        "ToolUseSummaryMessage",
        "TranscriptMirrorMessage",
        "TurnDurationMessage",
        "TurnPreemptedMessage",
        "UiInvalidateMessage",
        "UnknownBlock",
        "UnknownMessage",
        "Usage",
        "UserMessage",
        "WebFetchToolResultBlock",
        "WebSearchToolResultBlock",
        "WorkerShuttingDownMessage",
    ),
    "options": ("Options",),
    "transports": (
        "CliTransport",
        "Transport",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
