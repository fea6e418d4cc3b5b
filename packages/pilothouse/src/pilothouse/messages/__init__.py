"""Typed messages and content blocks of the CLI's output, decoded from lines of JSON in one pass.

Owns the message classes, the decoder and the encoder. Pure: no I/O, no clock. Must not know the control protocol.
Decoding raises only `LineDecodeError` or `MessageParseError`. Unknown parts are kept as `UnknownMessage`,
`UnknownBlock`, `UnknownApiEvent`, `UnknownWireDelta` or a plain `SystemMessage`. Start with `base` and `core`.
"""

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.messages.api_messages import AdvisorToolResultBlock as AdvisorToolResultBlock
from pilothouse.messages.api_messages import AnyApiEvent as AnyApiEvent
from pilothouse.messages.api_messages import AnyWireDelta as AnyWireDelta
from pilothouse.messages.api_messages import ApiErrorEvent as ApiErrorEvent
from pilothouse.messages.api_messages import ApiEvent as ApiEvent
from pilothouse.messages.api_messages import ApiPing as ApiPing
from pilothouse.messages.api_messages import AssistantBody as AssistantBody
from pilothouse.messages.api_messages import BashCodeExecutionToolResultBlock as BashCodeExecutionToolResultBlock
from pilothouse.messages.api_messages import Block as Block
from pilothouse.messages.api_messages import CacheCreation as CacheCreation
from pilothouse.messages.api_messages import CodeExecutionToolResultBlock as CodeExecutionToolResultBlock
from pilothouse.messages.api_messages import CompactionBlock as CompactionBlock
from pilothouse.messages.api_messages import ContainerUploadBlock as ContainerUploadBlock
from pilothouse.messages.api_messages import ContentBlock as ContentBlock
from pilothouse.messages.api_messages import ContentBlockDelta as ContentBlockDelta
from pilothouse.messages.api_messages import ContentBlockStart as ContentBlockStart
from pilothouse.messages.api_messages import ContentBlockStop as ContentBlockStop
from pilothouse.messages.api_messages import DocumentBlock as DocumentBlock
from pilothouse.messages.api_messages import ImageBlock as ImageBlock
from pilothouse.messages.api_messages import McpToolResultBlock as McpToolResultBlock
from pilothouse.messages.api_messages import McpToolUseBlock as McpToolUseBlock
from pilothouse.messages.api_messages import MessageDelta as MessageDelta
from pilothouse.messages.api_messages import MessageDeltaBody as MessageDeltaBody
from pilothouse.messages.api_messages import MessageStart as MessageStart
from pilothouse.messages.api_messages import MessageStop as MessageStop
from pilothouse.messages.api_messages import ModelUsage as ModelUsage
from pilothouse.messages.api_messages import OutputTokensDetails as OutputTokensDetails
from pilothouse.messages.api_messages import RedactedThinkingBlock as RedactedThinkingBlock
from pilothouse.messages.api_messages import SearchResultBlock as SearchResultBlock
from pilothouse.messages.api_messages import ServerToolResultBlock as ServerToolResultBlock
from pilothouse.messages.api_messages import ServerToolUsage as ServerToolUsage
from pilothouse.messages.api_messages import ServerToolUseBlock as ServerToolUseBlock
from pilothouse.messages.api_messages import TextBlock as TextBlock
from pilothouse.messages.api_messages import TextEditorToolResultBlock as TextEditorToolResultBlock
from pilothouse.messages.api_messages import ThinkingBlock as ThinkingBlock
from pilothouse.messages.api_messages import ToolReferenceBlock as ToolReferenceBlock
from pilothouse.messages.api_messages import ToolResultBlock as ToolResultBlock
from pilothouse.messages.api_messages import ToolSearchToolResultBlock as ToolSearchToolResultBlock
from pilothouse.messages.api_messages import ToolUseBlock as ToolUseBlock
from pilothouse.messages.api_messages import UnknownApiEvent as UnknownApiEvent
from pilothouse.messages.api_messages import UnknownBlock as UnknownBlock
from pilothouse.messages.api_messages import UnknownWireDelta as UnknownWireDelta
from pilothouse.messages.api_messages import Usage as Usage
from pilothouse.messages.api_messages import UserBody as UserBody
from pilothouse.messages.api_messages import WebFetchToolResultBlock as WebFetchToolResultBlock
from pilothouse.messages.api_messages import WebSearchToolResultBlock as WebSearchToolResultBlock
from pilothouse.messages.api_messages import WireCitationsDelta as WireCitationsDelta
from pilothouse.messages.api_messages import WireCompactionDelta as WireCompactionDelta
from pilothouse.messages.api_messages import WireDelta as WireDelta
from pilothouse.messages.api_messages import WireInputJsonDelta as WireInputJsonDelta
from pilothouse.messages.api_messages import WireSignatureDelta as WireSignatureDelta
from pilothouse.messages.api_messages import WireTextDelta as WireTextDelta
from pilothouse.messages.api_messages import WireThinkingDelta as WireThinkingDelta
from pilothouse.messages.base import Message as Message
from pilothouse.messages.core import AbandonedBlocks as AbandonedBlocks
from pilothouse.messages.core import ActiveGoalMessage as ActiveGoalMessage
from pilothouse.messages.core import ApiRetryMessage as ApiRetryMessage
from pilothouse.messages.core import AssistantMessage as AssistantMessage
from pilothouse.messages.core import AuthStatusMessage as AuthStatusMessage
from pilothouse.messages.core import BackgroundTasksChangedMessage as BackgroundTasksChangedMessage
from pilothouse.messages.core import BackgroundTaskState as BackgroundTaskState
from pilothouse.messages.core import CommandLifecycleMessage as CommandLifecycleMessage
from pilothouse.messages.core import ConversationResetMessage as ConversationResetMessage
from pilothouse.messages.core import DeferredToolUse as DeferredToolUse
from pilothouse.messages.core import DoneMessage as DoneMessage
from pilothouse.messages.core import InitMessage as InitMessage
from pilothouse.messages.core import KeepAliveMessage as KeepAliveMessage
from pilothouse.messages.core import LineSkippedMessage as LineSkippedMessage
from pilothouse.messages.core import McpServerInfo as McpServerInfo
from pilothouse.messages.core import Origin as Origin
from pilothouse.messages.core import PermissionDenial as PermissionDenial
from pilothouse.messages.core import PermissionDeniedMessage as PermissionDeniedMessage
from pilothouse.messages.core import PluginInfo as PluginInfo
from pilothouse.messages.core import PromptSuggestionMessage as PromptSuggestionMessage
from pilothouse.messages.core import RateLimitEvent as RateLimitEvent
from pilothouse.messages.core import RateLimitInfo as RateLimitInfo
from pilothouse.messages.core import ResultMessage as ResultMessage
from pilothouse.messages.core import SessionWritesLostMessage as SessionWritesLostMessage
from pilothouse.messages.core import StatusMessage as StatusMessage
from pilothouse.messages.core import StreamEvent as StreamEvent
from pilothouse.messages.core import SystemMessage as SystemMessage
from pilothouse.messages.core import TaskNotificationMessage as TaskNotificationMessage
from pilothouse.messages.core import TaskStartedMessage as TaskStartedMessage
from pilothouse.messages.core import TaskUpdatedMessage as TaskUpdatedMessage
from pilothouse.messages.core import TaskUsage as TaskUsage
from pilothouse.messages.core import ToolProgressMessage as ToolProgressMessage
from pilothouse.messages.core import ToolUseSummaryMessage as ToolUseSummaryMessage
from pilothouse.messages.core import TranscriptMirrorMessage as TranscriptMirrorMessage
from pilothouse.messages.core import UnknownMessage as UnknownMessage
from pilothouse.messages.core import UserMessage as UserMessage
from pilothouse.messages.decoder import MESSAGE_TYPES as MESSAGE_TYPES
from pilothouse.messages.decoder import FrameDecoder as FrameDecoder
from pilothouse.messages.decoder import decode as decode
from pilothouse.messages.decoder import encode as encode
from pilothouse.messages.decoder import from_dict as from_dict
from pilothouse.messages.decoder import is_terminal as is_terminal
from pilothouse.messages.decoder import to_dict as to_dict

if TYPE_CHECKING:
    from pilothouse.messages.system_subtypes import SYSTEM_SUBTYPES as SYSTEM_SUBTYPES
    from pilothouse.messages.system_subtypes import CommandsChangedMessage as CommandsChangedMessage
    from pilothouse.messages.system_subtypes import CompactBoundaryMessage as CompactBoundaryMessage
    from pilothouse.messages.system_subtypes import CompactMetadata as CompactMetadata
    from pilothouse.messages.system_subtypes import ControlRequestProgressMessage as ControlRequestProgressMessage
    from pilothouse.messages.system_subtypes import ElicitationCompleteMessage as ElicitationCompleteMessage
    from pilothouse.messages.system_subtypes import FilesPersistedMessage as FilesPersistedMessage
    from pilothouse.messages.system_subtypes import HookProgressMessage as HookProgressMessage
    from pilothouse.messages.system_subtypes import HookResponseMessage as HookResponseMessage
    from pilothouse.messages.system_subtypes import HookStartedMessage as HookStartedMessage
    from pilothouse.messages.system_subtypes import InformationalMessage as InformationalMessage
    from pilothouse.messages.system_subtypes import LocalCommandOutputMessage as LocalCommandOutputMessage
    from pilothouse.messages.system_subtypes import MemoryRecallMessage as MemoryRecallMessage
    from pilothouse.messages.system_subtypes import MirrorErrorMessage as MirrorErrorMessage
    from pilothouse.messages.system_subtypes import ModelConsentFallbackMessage as ModelConsentFallbackMessage
    from pilothouse.messages.system_subtypes import ModelFallbackMessage as ModelFallbackMessage
    from pilothouse.messages.system_subtypes import ModelRefusalFallbackMessage as ModelRefusalFallbackMessage
    from pilothouse.messages.system_subtypes import ModelRefusalNoFallbackMessage as ModelRefusalNoFallbackMessage
    from pilothouse.messages.system_subtypes import NotificationMessage as NotificationMessage
    from pilothouse.messages.system_subtypes import PluginInstallMessage as PluginInstallMessage
    from pilothouse.messages.system_subtypes import SessionStateChangedMessage as SessionStateChangedMessage
    from pilothouse.messages.system_subtypes import SessionTitleChangedMessage as SessionTitleChangedMessage
    from pilothouse.messages.system_subtypes import StopHookSummaryMessage as StopHookSummaryMessage
    from pilothouse.messages.system_subtypes import TaskProgressMessage as TaskProgressMessage
    from pilothouse.messages.system_subtypes import TaskSummaryMessage as TaskSummaryMessage
    from pilothouse.messages.system_subtypes import ThinkingTokensMessage as ThinkingTokensMessage
    from pilothouse.messages.system_subtypes import TurnDurationMessage as TurnDurationMessage
    from pilothouse.messages.system_subtypes import TurnPreemptedMessage as TurnPreemptedMessage
    from pilothouse.messages.system_subtypes import UiInvalidateMessage as UiInvalidateMessage
    from pilothouse.messages.system_subtypes import WorkerShuttingDownMessage as WorkerShuttingDownMessage


# Most runs need none of these.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "system_subtypes": (
            "SYSTEM_SUBTYPES CommandsChangedMessage CompactBoundaryMessage CompactMetadata "
            "ControlRequestProgressMessage ElicitationCompleteMessage FilesPersistedMessage HookProgressMessage "
            "HookResponseMessage HookStartedMessage InformationalMessage LocalCommandOutputMessage "
            "MemoryRecallMessage MirrorErrorMessage ModelConsentFallbackMessage ModelFallbackMessage "
            "ModelRefusalFallbackMessage ModelRefusalNoFallbackMessage NotificationMessage PluginInstallMessage "
            "SessionStateChangedMessage SessionTitleChangedMessage StopHookSummaryMessage TaskProgressMessage "
            "TaskSummaryMessage ThinkingTokensMessage TurnDurationMessage TurnPreemptedMessage "
            "UiInvalidateMessage WorkerShuttingDownMessage"
        ),
    },
)
