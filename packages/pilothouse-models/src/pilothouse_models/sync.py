"""The blocking `LanguageModel`: the same requests, from blocking code.

Owns only waiting. `pilothouse_models` does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pilothouse.options import Options
from pilothouse.support import get_portal, hide_arguments, user_class
from pilothouse_models import GenerateResult, ModelEvent
from pilothouse_models import LanguageModel as AsyncLanguageModel
from pilothouse_models import Stream as AsyncStream
from pilothouse_models.model import MAX_STEPS, ToolChoice
from pilothouse_models.request import ToolSources

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder

T = TypeVar("T")


@user_class
class LanguageModel:
    """A language model for blocking code; threads may share it.

    Arguments and errors are those of `pilothouse_models.LanguageModel`. There is no `abort`: close the
    stream, from any thread.
    """

    __slots__ = ("_model",)

    @hide_arguments
    def __init__(
        self, model: str | None = None, *, options: Options | OptionsBuilder | None = None, **settings: Any
    ) -> None:
        self._model = AsyncLanguageModel(model, options=options, **settings)

    def __repr__(self) -> str:
        return f"pilothouse_models.sync.{self._model!r}"

    @property
    def model(self) -> str:
        """The alias or id of the model."""
        return self._model.model

    @hide_arguments
    def generate(
        self,
        messages: str | Iterable[Any],
        tools: ToolSources | None = None,
        *,
        tool_choice: ToolChoice = "auto",
        max_steps: int = MAX_STEPS,
        output_type: Any = None,
        **settings: Any,
    ) -> GenerateResult:
        """Send a request and wait for the whole answer; Ctrl-C during the wait also ends the process."""
        asked: dict[str, Any] = {"tool_choice": tool_choice, "max_steps": max_steps, "output_type": output_type}
        return get_portal().call(partial(self._model.generate, messages, tools, **asked, **settings))

    @hide_arguments
    def stream(
        self,
        messages: str | Iterable[Any],
        tools: ToolSources | None = None,
        *,
        tool_choice: ToolChoice = "auto",
        max_steps: int = MAX_STEPS,
        output_type: Any = None,
        **settings: Any,
    ) -> Stream:
        """Send a request and read the answer while it is written."""
        asked: dict[str, Any] = {"tool_choice": tool_choice, "max_steps": max_steps, "output_type": output_type}
        return Stream(self._model.stream(messages, tools, **asked, **settings))


@user_class
class Stream:
    """A streamed answer; made by `LanguageModel.stream`, read once.

    ::

        for part in model.stream(messages): ...            # leaving the loop ends the process
        with model.stream(messages) as stream: ...          # the same, and it is gone when the block is left
    """

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    def __iter__(self) -> StreamIterator:
        return StreamIterator(self._stream, self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def result(self) -> GenerateResult:
        """Read to the end, and return the whole answer. Raises as `generate` does."""
        return self._call(self._stream.result)

    def close(self) -> None:
        """End the answer and wait until the process is gone. Idempotent, bounded, from any thread."""
        self._call(self._stream.aclose, finish=True)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return self._portal.call(work, finish=finish)

    @cached_property
    def _portal(self) -> Any:
        return get_portal()


@user_class
class StreamIterator:
    """One loop over a stream. Dropping it ends the answer."""

    __slots__ = ("_call", "_is_started", "_messages", "_stream")

    def __init__(self, stream: AsyncStream, call: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        self._stream = stream
        self._messages = stream.messages()
        self._call = call
        self._is_started = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ModelEvent:
        stream = self._stream
        if not self._is_started:
            self._is_started = True
            stream.check_unread()
        while (part := stream.next_event()) is None:
            if stream.has_ended:
                raise StopIteration
            self._call(partial(stream.advance, self._messages))
        return part
