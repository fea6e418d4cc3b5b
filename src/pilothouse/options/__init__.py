"""Settings: the one table, validation, and rendering to an `Invocation`. Knows no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.on_demand import on_demand as on_demand
from pilothouse.options.invocation import Invocation as Invocation
from pilothouse.options.invocation import PrivateFile as PrivateFile
from pilothouse.options.option import Option as Option
from pilothouse.options.options import Options as Options
from pilothouse.options.render import child_env as child_env
from pilothouse.options.render import render as render
from pilothouse.options.table import GROUPS as GROUPS
from pilothouse.options.table import TABLE as TABLE

if TYPE_CHECKING:
    from pilothouse.options.builder import OptionsBuilder as OptionsBuilder
    from pilothouse.options.contradictions import PolicyWarning as PolicyWarning
    from pilothouse.options.isolation import IsolationReport as IsolationReport
    from pilothouse.options.isolation import isolation_report as isolation_report
    from pilothouse.options.nested import AdaptiveThinking as AdaptiveThinking
    from pilothouse.options.nested import AgentDefinition as AgentDefinition
    from pilothouse.options.nested import CustomSystemPrompt as CustomSystemPrompt
    from pilothouse.options.nested import DisabledThinking as DisabledThinking
    from pilothouse.options.nested import EnabledThinking as EnabledThinking
    from pilothouse.options.nested import HttpServer as HttpServer
    from pilothouse.options.nested import Plugin as Plugin
    from pilothouse.options.nested import QuestionConfig as QuestionConfig
    from pilothouse.options.nested import Sandbox as Sandbox
    from pilothouse.options.nested import SandboxFilesystem as SandboxFilesystem
    from pilothouse.options.nested import SandboxNetwork as SandboxNetwork
    from pilothouse.options.nested import SseServer as SseServer
    from pilothouse.options.nested import StdioServer as StdioServer
    from pilothouse.options.nested import SystemPromptFile as SystemPromptFile
    from pilothouse.options.nested import SystemPromptPreset as SystemPromptPreset
    from pilothouse.options.nested import ToolConfig as ToolConfig
    from pilothouse.options.nested import ToolPolicy as ToolPolicy
    from pilothouse.options.policy import Policy as Policy
    from pilothouse.options.policy import PolicyRow as PolicyRow
    from pilothouse.options.retry_policy import RetryPolicy as RetryPolicy
    from pilothouse.options.settings import Settings as Settings

NESTED = (
    "AdaptiveThinking",
    "AgentDefinition",
    "CustomSystemPrompt",
    "DisabledThinking",
    "EnabledThinking",
    "HttpServer",
    "Plugin",
    "QuestionConfig",
    "Sandbox",
    "SandboxFilesystem",
    "SandboxNetwork",
    "SseServer",
    "StdioServer",
    "SystemPromptFile",
    "SystemPromptPreset",
    "ToolConfig",
    "ToolPolicy",
)
"""The typed nested values, by name."""

_ON_DEMAND = {
    "IsolationReport": "isolation",
    "OptionsBuilder": "builder",
    "Policy": "policy",
    "PolicyRow": "policy",
    "PolicyWarning": "contradictions",
    "RetryPolicy": "retry_policy",
    "Settings": "settings",
    "isolation_report": "isolation",
    **dict.fromkeys(NESTED, "nested"),
}

# These are slow to make, and few queries need them.
__getattr__, __dir__ = on_demand(__name__, _ON_DEMAND)
