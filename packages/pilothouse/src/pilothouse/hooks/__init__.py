"""Hooks: host functions that the CLI calls before, between and after what it does.

Owns the typed events, the outputs, the table of events and the fail-closed rule. Must not know permissions, tools,
the engine or the client: requests and responses are mappings. Start with `matchers`, then `dispatcher`.
"""

from pilothouse.hooks.events import EXIT_REASONS as EXIT_REASONS
from pilothouse.hooks.events import HOOK_EVENTS as HOOK_EVENTS
from pilothouse.hooks.events import BatchedToolCall as BatchedToolCall
from pilothouse.hooks.events import ConfigChangeEvent as ConfigChangeEvent
from pilothouse.hooks.events import CwdChangedEvent as CwdChangedEvent
from pilothouse.hooks.events import DirectoryAddedEvent as DirectoryAddedEvent
from pilothouse.hooks.events import ElicitationEvent as ElicitationEvent
from pilothouse.hooks.events import ElicitationResultEvent as ElicitationResultEvent
from pilothouse.hooks.events import FileChangedEvent as FileChangedEvent
from pilothouse.hooks.events import HookBackgroundTask as HookBackgroundTask
from pilothouse.hooks.events import HookEffort as HookEffort
from pilothouse.hooks.events import HookEvent as HookEvent
from pilothouse.hooks.events import HookEventSpec as HookEventSpec
from pilothouse.hooks.events import InstructionsLoadedEvent as InstructionsLoadedEvent
from pilothouse.hooks.events import McpServerOrigin as McpServerOrigin
from pilothouse.hooks.events import MessageDisplayEvent as MessageDisplayEvent
from pilothouse.hooks.events import NotificationEvent as NotificationEvent
from pilothouse.hooks.events import PermissionDeniedEvent as PermissionDeniedEvent
from pilothouse.hooks.events import PermissionRequestEvent as PermissionRequestEvent
from pilothouse.hooks.events import PostCompactEvent as PostCompactEvent
from pilothouse.hooks.events import PostModelSwitchEvent as PostModelSwitchEvent
from pilothouse.hooks.events import PostToolBatchEvent as PostToolBatchEvent
from pilothouse.hooks.events import PostToolUseEvent as PostToolUseEvent
from pilothouse.hooks.events import PostToolUseFailureEvent as PostToolUseFailureEvent
from pilothouse.hooks.events import PreCompactEvent as PreCompactEvent
from pilothouse.hooks.events import PreModelSwitchEvent as PreModelSwitchEvent
from pilothouse.hooks.events import PreSkillShellCommandEvent as PreSkillShellCommandEvent
from pilothouse.hooks.events import PreToolUseEvent as PreToolUseEvent
from pilothouse.hooks.events import RefusalFormat as RefusalFormat
from pilothouse.hooks.events import SessionCron as SessionCron
from pilothouse.hooks.events import SessionEndEvent as SessionEndEvent
from pilothouse.hooks.events import SessionStartEvent as SessionStartEvent
from pilothouse.hooks.events import SetupEvent as SetupEvent
from pilothouse.hooks.events import StopEvent as StopEvent
from pilothouse.hooks.events import StopFailureEvent as StopFailureEvent
from pilothouse.hooks.events import SubagentStartEvent as SubagentStartEvent
from pilothouse.hooks.events import SubagentStopEvent as SubagentStopEvent
from pilothouse.hooks.events import TaskCompletedEvent as TaskCompletedEvent
from pilothouse.hooks.events import TaskCreatedEvent as TaskCreatedEvent
from pilothouse.hooks.events import TeammateIdleEvent as TeammateIdleEvent
from pilothouse.hooks.events import UnknownHookEvent as UnknownHookEvent
from pilothouse.hooks.events import UserPromptExpansionEvent as UserPromptExpansionEvent
from pilothouse.hooks.events import UserPromptSubmitEvent as UserPromptSubmitEvent
from pilothouse.hooks.events import WorktreeCreateEvent as WorktreeCreateEvent
from pilothouse.hooks.events import WorktreeRemoveEvent as WorktreeRemoveEvent
from pilothouse.hooks.matchers import HookCallback as HookCallback
from pilothouse.hooks.matchers import HookMatcher as HookMatcher
from pilothouse.hooks.matchers import HookResult as HookResult
from pilothouse.hooks.matchers import Hooks as Hooks
from pilothouse.hooks.matchers import OnFailure as OnFailure
from pilothouse.hooks.outputs import HookOutput as HookOutput
from pilothouse.protocol.control_frames import merge_hook_outputs as merge_hook_outputs
