"""Typed messages and content blocks: what the peer says, decoded from lines of JSON in one pass.

Owns the wire's message classes, the decoder and the encoder. Pure: no I/O, no clock, and no knowledge of the control
protocol. Nothing that a peer may send raises anything but `LineDecodeError` or `MessageParseError`; what this version
does not know is kept as `UnknownMessage`, `UnknownBlock`, `UnknownEvent`, `UnknownDelta` or a plain `SystemMessage`.
"""

from typing import TYPE_CHECKING

from pilothouse.messages.base import Message as Message
from pilothouse.messages.blocks import AdvisorToolResultBlock as AdvisorToolResultBlock
from pilothouse.messages.blocks import BashCodeExecutionToolResultBlock as BashCodeExecutionToolResultBlock
from pilothouse.messages.blocks import Block as Block
from pilothouse.messages.blocks import CodeExecutionToolResultBlock as CodeExecutionToolResultBlock
from pilothouse.messages.blocks import CompactionBlock as CompactionBlock
from pilothouse.messages.blocks import ContainerUploadBlock as ContainerUploadBlock
from pilothouse.messages.blocks import ContentBlock as ContentBlock
from pilothouse.messages.blocks import DocumentBlock as DocumentBlock
from pilothouse.messages.blocks import ImageBlock as ImageBlock
from pilothouse.messages.blocks import McpToolResultBlock as McpToolResultBlock
from pilothouse.messages.blocks import McpToolUseBlock as McpToolUseBlock
from pilothouse.messages.blocks import RedactedThinkingBlock as RedactedThinkingBlock
from pilothouse.messages.blocks import SearchResultBlock as SearchResultBlock
from pilothouse.messages.blocks import ServerToolResultBlock as ServerToolResultBlock
from pilothouse.messages.blocks import ServerToolUseBlock as ServerToolUseBlock
from pilothouse.messages.blocks import TextBlock as TextBlock
from pilothouse.messages.blocks import TextEditorToolResultBlock as TextEditorToolResultBlock
from pilothouse.messages.blocks import ThinkingBlock as ThinkingBlock
from pilothouse.messages.blocks import ToolReferenceBlock as ToolReferenceBlock
from pilothouse.messages.blocks import ToolResultBlock as ToolResultBlock
from pilothouse.messages.blocks import ToolSearchToolResultBlock as ToolSearchToolResultBlock
from pilothouse.messages.blocks import ToolUseBlock as ToolUseBlock
from pilothouse.messages.blocks import UnknownBlock as UnknownBlock
from pilothouse.messages.blocks import WebFetchToolResultBlock as WebFetchToolResultBlock
from pilothouse.messages.blocks import WebSearchToolResultBlock as WebSearchToolResultBlock
from pilothouse.messages.bodies import AssistantBody as AssistantBody
from pilothouse.messages.bodies import UserBody as UserBody
from pilothouse.messages.conversation import AbandonedBlocks as AbandonedBlocks
from pilothouse.messages.conversation import AssistantMessage as AssistantMessage
from pilothouse.messages.conversation import DeferredToolUse as DeferredToolUse
from pilothouse.messages.conversation import Origin as Origin
from pilothouse.messages.conversation import PermissionDenial as PermissionDenial
from pilothouse.messages.conversation import ResultMessage as ResultMessage
from pilothouse.messages.conversation import StreamEvent as StreamEvent
from pilothouse.messages.conversation import UserMessage as UserMessage
from pilothouse.messages.decoder import MESSAGE_TYPES as MESSAGE_TYPES
from pilothouse.messages.decoder import FrameDecoder as FrameDecoder
from pilothouse.messages.decoder import decode as decode
from pilothouse.messages.decoder import encode as encode
from pilothouse.messages.decoder import from_dict as from_dict
from pilothouse.messages.decoder import is_terminal as is_terminal
from pilothouse.messages.decoder import to_dict as to_dict
from pilothouse.messages.events import AnyDelta as AnyDelta
from pilothouse.messages.events import AnyEvent as AnyEvent
from pilothouse.messages.events import CitationsDelta as CitationsDelta
from pilothouse.messages.events import CompactionDelta as CompactionDelta
from pilothouse.messages.events import ContentBlockDelta as ContentBlockDelta
from pilothouse.messages.events import ContentBlockStart as ContentBlockStart
from pilothouse.messages.events import ContentBlockStop as ContentBlockStop
from pilothouse.messages.events import Delta as Delta
from pilothouse.messages.events import ErrorEvent as ErrorEvent
from pilothouse.messages.events import Event as Event
from pilothouse.messages.events import InputJsonDelta as InputJsonDelta
from pilothouse.messages.events import MessageDelta as MessageDelta
from pilothouse.messages.events import MessageEnding as MessageEnding
from pilothouse.messages.events import MessageStart as MessageStart
from pilothouse.messages.events import MessageStop as MessageStop
from pilothouse.messages.events import Ping as Ping
from pilothouse.messages.events import SignatureDelta as SignatureDelta
from pilothouse.messages.events import TextDelta as TextDelta
from pilothouse.messages.events import ThinkingDelta as ThinkingDelta
from pilothouse.messages.events import UnknownDelta as UnknownDelta
from pilothouse.messages.events import UnknownEvent as UnknownEvent
from pilothouse.messages.notices import ActiveGoalMessage as ActiveGoalMessage
from pilothouse.messages.notices import AuthStatusMessage as AuthStatusMessage
from pilothouse.messages.notices import CommandLifecycleMessage as CommandLifecycleMessage
from pilothouse.messages.notices import ConversationResetMessage as ConversationResetMessage
from pilothouse.messages.notices import DoneMessage as DoneMessage
from pilothouse.messages.notices import KeepAliveMessage as KeepAliveMessage
from pilothouse.messages.notices import PromptSuggestionMessage as PromptSuggestionMessage
from pilothouse.messages.notices import RateLimitEvent as RateLimitEvent
from pilothouse.messages.notices import RateLimitInfo as RateLimitInfo
from pilothouse.messages.notices import ToolProgressMessage as ToolProgressMessage
from pilothouse.messages.notices import ToolUseSummaryMessage as ToolUseSummaryMessage
from pilothouse.messages.notices import TranscriptMirrorMessage as TranscriptMirrorMessage
from pilothouse.messages.notices import UnknownMessage as UnknownMessage
from pilothouse.messages.system import ApiRetryMessage as ApiRetryMessage
from pilothouse.messages.system import BackgroundTask as BackgroundTask
from pilothouse.messages.system import BackgroundTasksChangedMessage as BackgroundTasksChangedMessage
from pilothouse.messages.system import InitMessage as InitMessage
from pilothouse.messages.system import LineSkippedMessage as LineSkippedMessage
from pilothouse.messages.system import McpServerInfo as McpServerInfo
from pilothouse.messages.system import PermissionDeniedMessage as PermissionDeniedMessage
from pilothouse.messages.system import PluginInfo as PluginInfo
from pilothouse.messages.system import StatusMessage as StatusMessage
from pilothouse.messages.system import SystemMessage as SystemMessage
from pilothouse.messages.system import TaskNotificationMessage as TaskNotificationMessage
from pilothouse.messages.system import TaskStartedMessage as TaskStartedMessage
from pilothouse.messages.system import TaskUpdatedMessage as TaskUpdatedMessage
from pilothouse.messages.system import TaskUsage as TaskUsage
from pilothouse.messages.usage import CacheCreation as CacheCreation
from pilothouse.messages.usage import ModelUsage as ModelUsage
from pilothouse.messages.usage import OutputTokensDetails as OutputTokensDetails
from pilothouse.messages.usage import ServerToolUsage as ServerToolUsage
from pilothouse.messages.usage import Usage as Usage
from pilothouse.on_demand import on_demand as on_demand

if TYPE_CHECKING:
    from pilothouse.messages.activity import SYSTEM_TYPES as SYSTEM_TYPES
    from pilothouse.messages.activity import HookProgressMessage as HookProgressMessage
    from pilothouse.messages.activity import HookResponseMessage as HookResponseMessage
    from pilothouse.messages.activity import HookStartedMessage as HookStartedMessage
    from pilothouse.messages.activity import StopHookSummaryMessage as StopHookSummaryMessage
    from pilothouse.messages.activity import TaskProgressMessage as TaskProgressMessage
    from pilothouse.messages.activity import TaskSummaryMessage as TaskSummaryMessage
    from pilothouse.messages.activity import TurnDurationMessage as TurnDurationMessage
    from pilothouse.messages.activity import TurnPreemptedMessage as TurnPreemptedMessage
    from pilothouse.messages.incidents import CommandsChangedMessage as CommandsChangedMessage
    from pilothouse.messages.incidents import CompactBoundaryMessage as CompactBoundaryMessage
    from pilothouse.messages.incidents import CompactMetadata as CompactMetadata
    from pilothouse.messages.incidents import ControlRequestProgressMessage as ControlRequestProgressMessage
    from pilothouse.messages.incidents import ElicitationCompleteMessage as ElicitationCompleteMessage
    from pilothouse.messages.incidents import FilesPersistedMessage as FilesPersistedMessage
    from pilothouse.messages.incidents import InformationalMessage as InformationalMessage
    from pilothouse.messages.incidents import LocalCommandOutputMessage as LocalCommandOutputMessage
    from pilothouse.messages.incidents import MemoryRecallMessage as MemoryRecallMessage
    from pilothouse.messages.incidents import MirrorErrorMessage as MirrorErrorMessage
    from pilothouse.messages.incidents import ModelConsentFallbackMessage as ModelConsentFallbackMessage
    from pilothouse.messages.incidents import ModelFallbackMessage as ModelFallbackMessage
    from pilothouse.messages.incidents import ModelRefusalFallbackMessage as ModelRefusalFallbackMessage
    from pilothouse.messages.incidents import ModelRefusalNoFallbackMessage as ModelRefusalNoFallbackMessage
    from pilothouse.messages.incidents import NotificationMessage as NotificationMessage
    from pilothouse.messages.incidents import PluginInstallMessage as PluginInstallMessage
    from pilothouse.messages.incidents import SessionStateChangedMessage as SessionStateChangedMessage
    from pilothouse.messages.incidents import SessionTitleChangedMessage as SessionTitleChangedMessage
    from pilothouse.messages.incidents import SessionWritesLostMessage as SessionWritesLostMessage
    from pilothouse.messages.incidents import ThinkingTokensMessage as ThinkingTokensMessage
    from pilothouse.messages.incidents import UiInvalidateMessage as UiInvalidateMessage
    from pilothouse.messages.incidents import WorkerShuttingDownMessage as WorkerShuttingDownMessage

_MODULES = {
    "activity": (
        "HookProgressMessage HookResponseMessage HookStartedMessage SYSTEM_TYPES StopHookSummaryMessage "
        "TaskProgressMessage TaskSummaryMessage TurnDurationMessage TurnPreemptedMessage"
    ),
    "incidents": (
        "CommandsChangedMessage CompactBoundaryMessage CompactMetadata ControlRequestProgressMessage "
        "ElicitationCompleteMessage FilesPersistedMessage InformationalMessage LocalCommandOutputMessage "
        "MemoryRecallMessage MirrorErrorMessage ModelConsentFallbackMessage ModelFallbackMessage "
        "ModelRefusalFallbackMessage ModelRefusalNoFallbackMessage NotificationMessage "
        "PluginInstallMessage SessionStateChangedMessage SessionTitleChangedMessage "
        "SessionWritesLostMessage ThinkingTokensMessage UiInvalidateMessage WorkerShuttingDownMessage"
    ),
}
_ON_DEMAND = {name: module for module, names in _MODULES.items() for name in names.split()}

# Few runs say any of these.
__getattr__, __dir__ = on_demand(__name__, _ON_DEMAND)
