"""Claude Code as a language model for frameworks: `generate` and `stream` over messages and tools, without state.

Owns the vocabulary of such models, and how a request becomes one prompt. Must not know how a CLI is run.
"""

from pilothouse.language_model.model import DEFAULT_MODEL as DEFAULT_MODEL
from pilothouse.language_model.model import LanguageModel as LanguageModel
from pilothouse.language_model.parts import CallWarning as CallWarning
from pilothouse.language_model.parts import Error as Error
from pilothouse.language_model.parts import Finish as Finish
from pilothouse.language_model.parts import FinishReason as FinishReason
from pilothouse.language_model.parts import GenerateResult as GenerateResult
from pilothouse.language_model.parts import ModelStep as ModelStep
from pilothouse.language_model.parts import ReasoningDelta as ReasoningDelta
from pilothouse.language_model.parts import ResponseInfo as ResponseInfo
from pilothouse.language_model.parts import Retracted as Retracted
from pilothouse.language_model.parts import StreamPart as StreamPart
from pilothouse.language_model.parts import TextDelta as TextDelta
from pilothouse.language_model.parts import TokenUsage as TokenUsage
from pilothouse.language_model.parts import ToolCall as ToolCall
from pilothouse.language_model.parts import ToolCallDelta as ToolCallDelta
from pilothouse.language_model.parts import ToolCallStart as ToolCallStart
from pilothouse.language_model.parts import ToolResult as ToolResult
from pilothouse.language_model.stream import Stream as Stream
