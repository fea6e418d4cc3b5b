"""The blocking twin of the language model."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
from language_model_fixtures import NONCE, WEATHER, Listener, call_text, meaning, model_of, started, streamed, turn

import pilothouse_models as language_model
from pilothouse.errors import RateLimitError, SessionClosedError, UsageError
from pilothouse.events import TextDelta
from pilothouse_models import AnswerFailed
from pilothouse_models.sync import LanguageModel, Stream
from pilothouse_testing import frames, mock_transport


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


def blocking(*turns: Any, **settings: Any) -> LanguageModel:
    return LanguageModel(transport=lambda: mock_transport(*turns), **settings)


def weather(city: str) -> str:
    """The weather in a city."""
    assert threading.current_thread() is not threading.main_thread()
    return f"18 in {city}"


@pytest.mark.requirement("S2", "S33")
def test_both_ways_agree() -> None:
    model = blocking(turn(f"Look. {call_text(city='Oslo')}"), turn("Done."))
    result = model.generate("go", [weather])
    assert (result.text, result.tool_results[0].output) == ("Look. Done.", "18 in Oslo")
    listener = Listener()
    for part in model.stream("go", [weather]):
        listener.hear(part)
    assert meaning(listener.result) == meaning(result)
    assert listener.text == result.text
    assert meaning(model.stream("go", [weather]).result()) == meaning(result)
    assert model.generate("go", [WEATHER]).finish_reason == "tool-calls"


def test_errors() -> None:
    model = blocking(turn("no", is_error=True, api_error_status=429))
    with pytest.raises(RateLimitError):
        model.generate("go")
    *_, last = model.stream("go")
    assert isinstance(last, AnswerFailed)
    with pytest.raises(UsageError):
        model.stream("go", max_steps=0)
    assert (model.model, repr(model)) == ("sonnet", "pilothouse_models.sync.LanguageModel('sonnet')")


@pytest.mark.requirement("S34", "S36")
def test_leaving_a_block_ends_the_answer() -> None:
    made: list[Any] = []

    def transport() -> Any:
        made.append(mock_transport([frames.init(), started("m"), *streamed("text", ["Hel"], 0, "m", whole=False)]))
        return made[-1]

    with LanguageModel(transport=transport).stream("go") as stream:
        for part in stream:
            assert part == TextDelta("Hel")
            assert made[0].health().state == "healthy"
            break
    assert made[0].health().state != "healthy"
    with pytest.raises(SessionClosedError):
        stream.result()


def test_it_takes_what_the_original_takes() -> None:
    for name in ("generate", "stream", "__init__"):
        ours, theirs = (inspect.signature(getattr(cls, name)) for cls in (LanguageModel, language_model.LanguageModel))
        assert set(theirs.parameters) - set(ours.parameters) <= {"abort"}
        assert set(ours.parameters) <= set(theirs.parameters)
    assert {"result", "close"} <= set(vars(Stream))
    assert model_of().model == blocking().model
