"""A short run of what `make fuzz` does for long: seeds, inputs that broke something, and always the same changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fuzz_seeds import PROMPT, mutants, regressions, seeds
from fuzz_targets import PROMPT as THEIR_PROMPT
from fuzz_targets import TARGETS, end_runner, shorten_waits

import pilothouse as ph

COUNTS = {"connection": 400, "decoder": 1500, "framing": 1500, "jsontext": 1500, "query": 150, "xml": 600}
SEED = 330


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr("pilothouse.client.agent._default", ph.Agent())
    shorten_waits(monkeypatch.setattr)
    caplog.set_level(logging.CRITICAL)
    yield
    end_runner()


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.requirement("E54", "E71", "G34", "L28", "L35")
def test_odd_bytes_break_no_promise(target: str) -> None:
    for number, data in enumerate((*seeds(target), *mutants(target, SEED, COUNTS[target]))):
        try:
            TARGETS[target](data)
        except BaseException as error:
            error.add_note(f"input {number} of {target}: {data[:2000]!r}")
            raise


def test_inputs_that_are_kept_belong_to_a_target() -> None:
    assert PROMPT == THEIR_PROMPT
    kept = {path.parent.name for target in TARGETS for path in regressions(target)}
    assert kept <= set(TARGETS)
