"""Steer Claude Code, the `claude` command-line agent, from Python.

    import pilothouse as ph

    result = await ph.query("What does this repository do?")
    print(result.text)

This package contains only the public names. Each is loaded on first use, so that importing the package costs next to
nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pilothouse.lazy_exports import load_name, read_lazy_names

if TYPE_CHECKING:
    from pilothouse._version import __version__ as __version__
    from pilothouse.client import Agent as Agent
    from pilothouse.client import Query as Query
    from pilothouse.client import QueryResult as QueryResult
    from pilothouse.client import Session as Session
    from pilothouse.client import configure as configure
    from pilothouse.client import default_agent as default_agent
    from pilothouse.client import document as document
    from pilothouse.client import image as image
    from pilothouse.client import query as query
    from pilothouse.client import session as session
    from pilothouse.client import set_default_agent as set_default_agent
    from pilothouse.client import trust as trust
    from pilothouse.client.costs import SessionCost as SessionCost
    from pilothouse.client.costs import TurnCost as TurnCost
    from pilothouse.driver.pool import Pool as Pool
    from pilothouse.errors import ArtifactsError as ArtifactsError
    from pilothouse.errors import AuthenticationError as AuthenticationError
    from pilothouse.errors import BudgetError as BudgetError
    from pilothouse.errors import CassetteError as CassetteError
    from pilothouse.errors import CLIExitedError as CLIExitedError
    from pilothouse.errors import CLINotFoundError as CLINotFoundError
    from pilothouse.errors import CLIStartError as CLIStartError
    from pilothouse.errors import CLIVersionError as CLIVersionError
    from pilothouse.errors import ConfigError as ConfigError
    from pilothouse.errors import ContextOverflowError as ContextOverflowError
    from pilothouse.errors import ControlError as ControlError
    from pilothouse.errors import ControlTimeout as ControlTimeout
    from pilothouse.errors import ExecutionError as ExecutionError
    from pilothouse.errors import Interrupted as Interrupted
    from pilothouse.errors import InvalidModelError as InvalidModelError
    from pilothouse.errors import LeaseLostError as LeaseLostError
    from pilothouse.errors import LineDecodeError as LineDecodeError
    from pilothouse.errors import MaxTurnsError as MaxTurnsError
    from pilothouse.errors import MessageParseError as MessageParseError
    from pilothouse.errors import NoResultError as NoResultError
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
    from pilothouse.errors import RemoteError as RemoteError
    from pilothouse.errors import ReplayMismatch as ReplayMismatch
    from pilothouse.errors import ResultError as ResultError
    from pilothouse.errors import SessionClosedError as SessionClosedError
    from pilothouse.errors import SessionExistsError as SessionExistsError
    from pilothouse.errors import SessionLeasedError as SessionLeasedError
    from pilothouse.errors import SessionNotFoundError as SessionNotFoundError
    from pilothouse.errors import StoreConflictError as StoreConflictError
    from pilothouse.errors import StoreError as StoreError
    from pilothouse.errors import StructuredOutputError as StructuredOutputError
    from pilothouse.errors import ToolDefinitionError as ToolDefinitionError
    from pilothouse.errors import UsageError as UsageError
    from pilothouse.errors import WorkerLostError as WorkerLostError
    from pilothouse.errors import WorkspaceError as WorkspaceError
    from pilothouse.errors import find_cause as find_cause
    from pilothouse.events import ApiRetry as ApiRetry
    from pilothouse.events import BudgetReached as BudgetReached
    from pilothouse.events import Finished as Finished
    from pilothouse.events import LineSkipped as LineSkipped
    from pilothouse.events import OutputRejected as OutputRejected
    from pilothouse.events import PermissionAsked as PermissionAsked
    from pilothouse.events import PermissionSettled as PermissionSettled
    from pilothouse.events import QueryEvent as QueryEvent
    from pilothouse.events import RetryScheduled as RetryScheduled
    from pilothouse.events import Stalled as Stalled
    from pilothouse.events import Started as Started
    from pilothouse.events import TextDelta as TextDelta
    from pilothouse.events import TextRetracted as TextRetracted
    from pilothouse.events import ThinkingDelta as ThinkingDelta
    from pilothouse.events import ToolCallFinished as ToolCallFinished
    from pilothouse.events import ToolCallStarted as ToolCallStarted
    from pilothouse.events import WaitingForLimit as WaitingForLimit
    from pilothouse.fleet import Artifacts as Artifacts
    from pilothouse.fleet import CopiedDirectory as CopiedDirectory
    from pilothouse.fleet import Fleet as Fleet
    from pilothouse.fleet import FleetJournalError as FleetJournalError
    from pilothouse.fleet import FleetStatus as FleetStatus
    from pilothouse.fleet import GitWorktree as GitWorktree
    from pilothouse.fleet import Rate as Rate
    from pilothouse.fleet import RayRunner as RayRunner
    from pilothouse.fleet import Run as Run
    from pilothouse.fleet import RunWriter as RunWriter
    from pilothouse.hooks import HOOK_EVENTS as HOOK_EVENTS
    from pilothouse.hooks import BatchedToolCall as BatchedToolCall
    from pilothouse.hooks import ConfigChangeEvent as ConfigChangeEvent
    from pilothouse.hooks import CwdChangedEvent as CwdChangedEvent
    from pilothouse.hooks import DirectoryAddedEvent as DirectoryAddedEvent
    from pilothouse.hooks import ElicitationEvent as ElicitationEvent
    from pilothouse.hooks import ElicitationResultEvent as ElicitationResultEvent
    from pilothouse.hooks import FileChangedEvent as FileChangedEvent
    from pilothouse.hooks import HookBackgroundTask as HookBackgroundTask
    from pilothouse.hooks import HookEffort as HookEffort
    from pilothouse.hooks import HookEvent as HookEvent
    from pilothouse.hooks import HookMatcher as HookMatcher
    from pilothouse.hooks import HookOutput as HookOutput
    from pilothouse.hooks import InstructionsLoadedEvent as InstructionsLoadedEvent
    from pilothouse.hooks import McpServerOrigin as McpServerOrigin
    from pilothouse.hooks import MessageDisplayEvent as MessageDisplayEvent
    from pilothouse.hooks import NotificationEvent as NotificationEvent
    from pilothouse.hooks import PermissionDeniedEvent as PermissionDeniedEvent
    from pilothouse.hooks import PermissionRequestEvent as PermissionRequestEvent
    from pilothouse.hooks import PostCompactEvent as PostCompactEvent
    from pilothouse.hooks import PostModelSwitchEvent as PostModelSwitchEvent
    from pilothouse.hooks import PostToolBatchEvent as PostToolBatchEvent
    from pilothouse.hooks import PostToolUseEvent as PostToolUseEvent
    from pilothouse.hooks import PostToolUseFailureEvent as PostToolUseFailureEvent
    from pilothouse.hooks import PreCompactEvent as PreCompactEvent
    from pilothouse.hooks import PreModelSwitchEvent as PreModelSwitchEvent
    from pilothouse.hooks import PreToolUseEvent as PreToolUseEvent
    from pilothouse.hooks import RefusalFormat as RefusalFormat
    from pilothouse.hooks import SessionCron as SessionCron
    from pilothouse.hooks import SessionEndEvent as SessionEndEvent
    from pilothouse.hooks import SessionStartEvent as SessionStartEvent
    from pilothouse.hooks import SetupEvent as SetupEvent
    from pilothouse.hooks import StopEvent as StopEvent
    from pilothouse.hooks import StopFailureEvent as StopFailureEvent
    from pilothouse.hooks import SubagentStartEvent as SubagentStartEvent
    from pilothouse.hooks import SubagentStopEvent as SubagentStopEvent
    from pilothouse.hooks import TaskCompletedEvent as TaskCompletedEvent
    from pilothouse.hooks import TaskCreatedEvent as TaskCreatedEvent
    from pilothouse.hooks import TeammateIdleEvent as TeammateIdleEvent
    from pilothouse.hooks import UnknownHookEvent as UnknownHookEvent
    from pilothouse.hooks import UserPromptExpansionEvent as UserPromptExpansionEvent
    from pilothouse.hooks import UserPromptSubmitEvent as UserPromptSubmitEvent
    from pilothouse.hooks import WorktreeCreateEvent as WorktreeCreateEvent
    from pilothouse.hooks import WorktreeRemoveEvent as WorktreeRemoveEvent
    from pilothouse.instrumentation import Instrumentation as Instrumentation
    from pilothouse.instrumentation import Observer as Observer
    from pilothouse.language_model import LanguageModel as LanguageModel
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
    from pilothouse.messages import LineSkippedMessage as LineSkippedMessage
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
    from pilothouse.native import NativeTransport as NativeTransport
    from pilothouse.options import AdaptiveThinking as AdaptiveThinking
    from pilothouse.options import AgentDefinition as AgentDefinition
    from pilothouse.options import CustomSystemPrompt as CustomSystemPrompt
    from pilothouse.options import DisabledThinking as DisabledThinking
    from pilothouse.options import EnabledThinking as EnabledThinking
    from pilothouse.options import HttpServer as HttpServer
    from pilothouse.options import IsolationReport as IsolationReport
    from pilothouse.options import Options as Options
    from pilothouse.options import OptionsBuilder as OptionsBuilder
    from pilothouse.options import Plugin as Plugin
    from pilothouse.options import Policy as Policy
    from pilothouse.options import PolicyRow as PolicyRow
    from pilothouse.options import PolicyWarning as PolicyWarning
    from pilothouse.options import QuestionConfig as QuestionConfig
    from pilothouse.options import RetryPolicy as RetryPolicy
    from pilothouse.options import Sandbox as Sandbox
    from pilothouse.options import SandboxFilesystem as SandboxFilesystem
    from pilothouse.options import SandboxNetwork as SandboxNetwork
    from pilothouse.options import SseServer as SseServer
    from pilothouse.options import StdioServer as StdioServer
    from pilothouse.options import SystemPromptFile as SystemPromptFile
    from pilothouse.options import SystemPromptPreset as SystemPromptPreset
    from pilothouse.options import ToolConfig as ToolConfig
    from pilothouse.options import ToolPolicy as ToolPolicy
    from pilothouse.options import isolation_report as isolation_report
    from pilothouse.permissions import Accept as Accept
    from pilothouse.permissions import AddDirectories as AddDirectories
    from pilothouse.permissions import AddRules as AddRules
    from pilothouse.permissions import Allow as Allow
    from pilothouse.permissions import Cancel as Cancel
    from pilothouse.permissions import Confirm as Confirm
    from pilothouse.permissions import Decline as Decline
    from pilothouse.permissions import Deny as Deny
    from pilothouse.permissions import DialogRequest as DialogRequest
    from pilothouse.permissions import ElicitationRequest as ElicitationRequest
    from pilothouse.permissions import PermissionRequest as PermissionRequest
    from pilothouse.permissions import PermissionRule as PermissionRule
    from pilothouse.permissions import PermissionUpdate as PermissionUpdate
    from pilothouse.permissions import PlanRequest as PlanRequest
    from pilothouse.permissions import QuestionOption as QuestionOption
    from pilothouse.permissions import QuestionRequest as QuestionRequest
    from pilothouse.permissions import RemoveDirectories as RemoveDirectories
    from pilothouse.permissions import RemoveRules as RemoveRules
    from pilothouse.permissions import ReplaceRules as ReplaceRules
    from pilothouse.permissions import SetMode as SetMode
    from pilothouse.permissions import UnknownUpdate as UnknownUpdate
    from pilothouse.permissions import UserQuestion as UserQuestion
    from pilothouse.permissions import allow_all as allow_all
    from pilothouse.permissions import deny_all as deny_all
    from pilothouse.remote import Backoff as Backoff
    from pilothouse.stores import Lease as Lease
    from pilothouse.stores import MemoryStore as MemoryStore
    from pilothouse.stores import ScopedStore as ScopedStore
    from pilothouse.stores import SessionKey as SessionKey
    from pilothouse.stores import SessionStore as SessionStore
    from pilothouse.stores import StoreBackend as StoreBackend
    from pilothouse.stores import fold_summary as fold_summary
    from pilothouse.stores.objects import ObjectStore as ObjectStore
    from pilothouse.stores.postgres import PostgresStore as PostgresStore
    from pilothouse.stores.redis import RedisStore as RedisStore
    from pilothouse.stores.sqlite import SqliteStore as SqliteStore
    from pilothouse.stores.stored_sessions import StoredSessions as StoredSessions
    from pilothouse.stores.stored_sessions import import_session_to_store as import_session_to_store
    from pilothouse.tools import Prompt as Prompt
    from pilothouse.tools import Resource as Resource
    from pilothouse.tools import SdkServer as SdkServer
    from pilothouse.tools import Tool as Tool
    from pilothouse.tools import ToolAnnotations as ToolAnnotations
    from pilothouse.tools import ToolContent as ToolContent
    from pilothouse.tools import ToolContext as ToolContext
    from pilothouse.tools import ToolError as ToolError
    from pilothouse.tools import ToolExecutionError as ToolExecutionError
    from pilothouse.tools import ToolFailure as ToolFailure
    from pilothouse.tools import ToolInputError as ToolInputError
    from pilothouse.tools import ToolResult as ToolResult
    from pilothouse.tools import ToolResultError as ToolResultError
    from pilothouse.tools import ToolTimeout as ToolTimeout
    from pilothouse.tools import audio_content as audio_content
    from pilothouse.tools import create_tool as create_tool
    from pilothouse.tools import embedded_resource as embedded_resource
    from pilothouse.tools import image_content as image_content
    from pilothouse.tools import mount as mount
    from pilothouse.tools import prompt as prompt
    from pilothouse.tools import resource as resource
    from pilothouse.tools import resource_link as resource_link
    from pilothouse.tools import sdk_server as sdk_server
    from pilothouse.tools import text_content as text_content
    from pilothouse.tools import tool as tool
    from pilothouse.transcripts import ForkSessionResult as ForkSessionResult
    from pilothouse.transcripts import SearchHit as SearchHit
    from pilothouse.transcripts import SessionInfo as SessionInfo
    from pilothouse.transcripts import SessionUsageTotals as SessionUsageTotals
    from pilothouse.transcripts import TranscriptProblem as TranscriptProblem
    from pilothouse.transcripts import UsageReport as UsageReport
    from pilothouse.transcripts import UsageTotals as UsageTotals
    from pilothouse.transcripts import delete_session as delete_session
    from pilothouse.transcripts import export_session as export_session
    from pilothouse.transcripts import fork_session as fork_session
    from pilothouse.transcripts import get_session_info as get_session_info
    from pilothouse.transcripts import get_session_messages as get_session_messages
    from pilothouse.transcripts import get_subagent_messages as get_subagent_messages
    from pilothouse.transcripts import list_sessions as list_sessions
    from pilothouse.transcripts import list_subagents as list_subagents
    from pilothouse.transcripts import rename_session as rename_session
    from pilothouse.transcripts import search_sessions as search_sessions
    from pilothouse.transcripts import tag_session as tag_session
    from pilothouse.transcripts import usage_report as usage_report
    from pilothouse.transports import Cassette as Cassette
    from pilothouse.transports import CliTransport as CliTransport
    from pilothouse.transports import Player as Player
    from pilothouse.transports import Recorder as Recorder
    from pilothouse.transports import RecordingTransport as RecordingTransport
    from pilothouse.transports import ReplayTransport as ReplayTransport
    from pilothouse.transports import Transport as Transport
    from pilothouse.transports import WebSocketTransport as WebSocketTransport
    from pilothouse.transports import on_host as on_host

_MODULES = read_lazy_names(__name__)

if not TYPE_CHECKING:  # type checkers read the imports above; mypy would take a computed list for an empty one
    __all__ = sorted(_MODULES or ())


def __getattr__(name: str) -> Any:
    if _MODULES is not None and name not in _MODULES:
        raise _make_error(__name__, name)
    return load_name(__name__, _MODULES, name)


def _make_error(module: str, name: str) -> Exception:
    caller = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if caller.f_globals.get("__name__") == "importlib._bootstrap":  # checks whether `name` has to be imported
        return AttributeError(name)
    from pilothouse.hints import make_name_error  # only on the way to an error

    return make_name_error(module, name, _MODULES or {}, caller)


def __dir__() -> list[str]:
    """The public names, without the internals of this module."""
    return sorted([*(_MODULES or ()), *(name for name in globals() if name.startswith("__"))])
