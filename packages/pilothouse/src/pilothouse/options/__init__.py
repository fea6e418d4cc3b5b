"""Settings of queries: the table of options, their validation, and rendering to an `Invocation`.

Owns `Options`. Must not know I/O or processes. Start with `table`, then `options` and `renderer`.
"""

from __future__ import annotations

from pilothouse.options.cli_settings import CliHook as CliHook
from pilothouse.options.cli_settings import CliHookMatcher as CliHookMatcher
from pilothouse.options.cli_settings import CliPermissions as CliPermissions
from pilothouse.options.cli_settings import CliSandbox as CliSandbox
from pilothouse.options.cli_settings import CliSandboxFilesystem as CliSandboxFilesystem
from pilothouse.options.cli_settings import CliSandboxNetwork as CliSandboxNetwork
from pilothouse.options.cli_settings import CliSettings as CliSettings
from pilothouse.options.conflicts import PolicyWarning as PolicyWarning
from pilothouse.options.credentials import CREDENTIAL_VARIABLES as CREDENTIAL_VARIABLES
from pilothouse.options.isolation import IsolationReport as IsolationReport
from pilothouse.options.isolation import isolation_report as isolation_report
from pilothouse.options.options import Options as Options
from pilothouse.options.options import OptionsBuilder as OptionsBuilder
from pilothouse.options.permission_rules import normalize_mcp_name as normalize_mcp_name
from pilothouse.options.renderer import Invocation as Invocation
from pilothouse.options.renderer import PrivateFile as PrivateFile
from pilothouse.options.renderer import render as render
from pilothouse.options.renderer import render_child_env as render_child_env
from pilothouse.options.settings import Settings as Settings
from pilothouse.options.table import GROUPS as GROUPS
from pilothouse.options.table import TABLE as TABLE
from pilothouse.options.table import Option as Option
from pilothouse.options.value_structs import SYSTEM_PROMPT_DYNAMIC_BOUNDARY as SYSTEM_PROMPT_DYNAMIC_BOUNDARY
from pilothouse.options.value_structs import AdaptiveThinking as AdaptiveThinking
from pilothouse.options.value_structs import AgentDefinition as AgentDefinition
from pilothouse.options.value_structs import CustomSystemPrompt as CustomSystemPrompt
from pilothouse.options.value_structs import DisabledThinking as DisabledThinking
from pilothouse.options.value_structs import EnabledThinking as EnabledThinking
from pilothouse.options.value_structs import HttpServer as HttpServer
from pilothouse.options.value_structs import Plugin as Plugin
from pilothouse.options.value_structs import QuestionConfig as QuestionConfig
from pilothouse.options.value_structs import RetryPolicy as RetryPolicy
from pilothouse.options.value_structs import Sandbox as Sandbox
from pilothouse.options.value_structs import SandboxFilesystem as SandboxFilesystem
from pilothouse.options.value_structs import SandboxNetwork as SandboxNetwork
from pilothouse.options.value_structs import SseServer as SseServer
from pilothouse.options.value_structs import StdioServer as StdioServer
from pilothouse.options.value_structs import SystemPromptFile as SystemPromptFile
from pilothouse.options.value_structs import SystemPromptPreset as SystemPromptPreset
from pilothouse.options.value_structs import ToolConfig as ToolConfig
from pilothouse.options.value_structs import ToolPolicy as ToolPolicy
from pilothouse.options.value_types import InvalidValueError as InvalidValueError
from pilothouse.options.values import OptionExplanation as OptionExplanation
