"""Claude Code as a language model for frameworks: stateless `generate` and `stream` over messages and tools.

Owns how a request becomes one prompt, and the whole answer; most events of a stream are those of `pilothouse.events`.
Does not know how the CLI is run. Start reading at `model.py`.
"""

from pilothouse.language_model.model import DEFAULT_MODEL as DEFAULT_MODEL
from pilothouse.language_model.model import LanguageModel as LanguageModel
from pilothouse.language_model.request import CallWarning as CallWarning
from pilothouse.language_model.stream import AnswerFailed as AnswerFailed
from pilothouse.language_model.stream import AnswerFinished as AnswerFinished
from pilothouse.language_model.stream import FinishReason as FinishReason
from pilothouse.language_model.stream import GenerateResult as GenerateResult
from pilothouse.language_model.stream import ModelEvent as ModelEvent
from pilothouse.language_model.stream import ModelStep as ModelStep
from pilothouse.language_model.stream import ResponseInfo as ResponseInfo
from pilothouse.language_model.stream import Stream as Stream
from pilothouse.language_model.stream import TokenUsage as TokenUsage
