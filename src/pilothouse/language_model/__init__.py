"""Claude Code as a language model for frameworks: stateless `generate` and `stream` over messages and tools.

Owns the vocabulary of such models, and how a request becomes one prompt. Does not know how the CLI is run. Start
reading at `model.py`.
"""

from pilothouse.language_model.events import CallWarning as CallWarning
from pilothouse.language_model.events import Failed as Failed
from pilothouse.language_model.events import Finished as Finished
from pilothouse.language_model.events import FinishReason as FinishReason
from pilothouse.language_model.events import GenerateResult as GenerateResult
from pilothouse.language_model.events import ModelEvent as ModelEvent
from pilothouse.language_model.events import ModelStep as ModelStep
from pilothouse.language_model.events import ResponseInfo as ResponseInfo
from pilothouse.language_model.events import TextDelta as TextDelta
from pilothouse.language_model.events import TextRetracted as TextRetracted
from pilothouse.language_model.events import ThinkingDelta as ThinkingDelta
from pilothouse.language_model.events import TokenUsage as TokenUsage
from pilothouse.language_model.events import ToolCall as ToolCall
from pilothouse.language_model.events import ToolCallDelta as ToolCallDelta
from pilothouse.language_model.events import ToolCallStarted as ToolCallStarted
from pilothouse.language_model.events import ToolResult as ToolResult
from pilothouse.language_model.model import DEFAULT_MODEL as DEFAULT_MODEL
from pilothouse.language_model.model import LanguageModel as LanguageModel
from pilothouse.language_model.stream import Stream as Stream
