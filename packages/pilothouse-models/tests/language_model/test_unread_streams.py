"""A stream of a language model that is not read warns, and one that was read is not read again."""

from __future__ import annotations

import pytest

import pilothouse as ph
import pilothouse_models.sync
from pilothouse_models import LanguageModel
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio


def test_a_stream_of_a_language_model_that_is_never_read_warns(fake: FakeCLI) -> None:
    stream = [LanguageModel("opus", cli=fake.path).stream("Tidy up")]
    with pytest.warns(RuntimeWarning, match=r"was never sent: read the stream"):
        stream.clear()


async def test_a_second_loop_over_a_stream_of_a_language_model_is_refused(fake: FakeCLI) -> None:
    stream = LanguageModel("opus", cli=fake.text("Hello").path).stream("Hi")
    assert [part.type async for part in stream][-1] == "finish"
    with pytest.raises(ph.UsageError, match="read to its end"):
        await anext(aiter(stream))
    with FakeCLI().text("Hello") as other:
        blocking = pilothouse_models.sync.LanguageModel("opus", cli=other.path).stream("Hi")
        assert blocking.result().text == "Hello"
        with pytest.raises(ph.UsageError, match="read to its end"):
            list(blocking)
