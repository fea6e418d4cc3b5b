"""The blocking `Agent` and the default agent: one configuration for both worlds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pilothouse
from pilothouse import sync as ph
from pilothouse_testing import FakeCLI, as_default


@pytest.fixture
def clean(fake: FakeCLI) -> FakeCLI:
    fake.text("Hello").forever()
    return fake


def asked(fake: FakeCLI) -> str:
    """The model that the last run was to use."""
    return next(arg for arg in fake.calls[-1].argv if arg.startswith("--model="))


def test_async_and_blocking_code_share_the_default_agent(clean: FakeCLI) -> None:
    with as_default(pilothouse.Agent(model="haiku", cli=clean.path)):
        assert ph.query("go").result().text == "Hello"
        assert asked(clean) == "--model=haiku"
        assert ph.default_agent() is ph.default_agent()
        assert ph.default_agent().async_agent is pilothouse.default_agent()
        assert ph.configure(effort="low") is ph.default_agent()
        assert pilothouse.default_agent().options.effort == "low"

        mine = ph.Agent(model="opus", cli=clean.path)
        before = ph.set_default_agent(mine)
        assert before.options.model == "haiku"
        assert ph.default_agent() is mine
        assert asyncio.run(pilothouse.query("go").result()).text == "Hello"
        assert asked(clean) == "--model=opus"
        ph.set_default_agent(before)
        assert pilothouse.default_agent().options.model == "haiku"
    with pytest.raises(ph.UsageError, match=r"pilothouse\.sync"):
        ph.set_default_agent(pilothouse.Agent())  # pyright: ignore[reportArgumentType]


def test_an_agent_has_a_blocking_counterpart(clean: FakeCLI) -> None:
    other = pilothouse.Agent(model="haiku", cli=clean.path)
    counterpart = ph.Agent.wrap(other)
    assert counterpart.async_agent is other
    assert counterpart.query("go").result().text == "Hello"


@pytest.mark.parametrize("wrong", ["haiku", pilothouse.Options(), ph.Agent()])
def test_only_an_agent_of_pilothouse_is_wrapped(wrong: Any) -> None:
    with pytest.raises(ph.UsageError, match=f"agent: expected an Agent of pilothouse, got {type(wrong).__name__}"):
        ph.Agent.wrap(wrong)
