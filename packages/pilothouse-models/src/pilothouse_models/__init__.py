"""Claude Code as a language model for frameworks: stateless `generate` and `stream` over messages and tools.

Owns how a request becomes one prompt, and the whole answer; most events of a stream are those of `pilothouse.events`.
Does not know how the CLI is run. Start reading at `model.py`.
"""

from pilothouse_models.model import DEFAULT_MODEL as DEFAULT_MODEL
from pilothouse_models.model import LanguageModel as LanguageModel
from pilothouse_models.request import CallWarning as CallWarning
from pilothouse_models.stream import AnswerFailed as AnswerFailed
from pilothouse_models.stream import AnswerFinished as AnswerFinished
from pilothouse_models.stream import FinishReason as FinishReason
from pilothouse_models.stream import GenerateResult as GenerateResult
from pilothouse_models.stream import ModelEvent as ModelEvent
from pilothouse_models.stream import ModelStep as ModelStep
from pilothouse_models.stream import ResponseInfo as ResponseInfo
from pilothouse_models.stream import Stream as Stream
from pilothouse_models.stream import TokenUsage as TokenUsage
