"""The page about retries and timeouts says what is so: defaults, words, times, events and their fields."""

from __future__ import annotations

import re

import pytest
from docs_pages import DOCS, prose

from pilothouse.client import events, retrying
from pilothouse.driver import answering, child, exchange, silence
from pilothouse.options import TABLE, RetryPolicy
from pilothouse.options.retry_policy import REASONS

PAGE = " ".join(prose(DOCS / "retries-and-timeouts.md").split())


def test_the_words_that_the_model_gets_stand_there() -> None:
    assert f'"{retrying.CONTINUE_PROMPT}"' in PAGE
    assert f"more than {retrying.REPEATED_BYTES // 1024} KiB is not repeated" in PAGE


def test_the_policy_and_its_defaults() -> None:
    assert set(RetryPolicy.__struct_fields__) <= set(re.findall(r"`(\w+)`", PAGE))
    policy = RetryPolicy()
    assert f"| `attempts` | {policy.attempts} |" in PAGE
    delays = f"{policy.first_delay:g} s, {policy.multiplier:g}, {policy.max_delay:g} s"
    assert f"| `first_delay`, `multiplier`, `max_delay` | {delays} |" in PAGE
    assert f"| `jitter` | {policy.jitter} |" in PAGE
    assert policy.on == REASONS
    assert all(f'`"{reason}"`' in PAGE for reason in REASONS)
    assert f"`usage_limit_ceiling` ({TABLE['usage_limit_ceiling'].default / 3600:g} hours)" in PAGE


def test_the_times() -> None:
    assert silence.WARNING_AT == 0.5
    assert "At half of the limit" in PAGE
    assert f"counts as running for {child.LOST_RESULT_SECONDS / 60:g} minutes more" in PAGE
    assert f"({exchange.RECEIPT_SECONDS:g} s to answer, {exchange.SAVE_SECONDS:g} s to end)" in PAGE
    assert f"does not stop within {answering.INTERRUPT_SECONDS:g} s is replaced" in PAGE


@pytest.mark.parametrize(
    ("event", "subtype"),
    [
        (events.RetryScheduled, retrying.RETRY_SCHEDULED),
        (events.WaitingForLimit, retrying.LIMIT_WAIT),
        (events.Stalled, silence.STALLED),
    ],
)
def test_events_their_messages_and_their_fields(event: type, subtype: str) -> None:
    row = re.search(rf"\| `{event.__name__}` \| `{subtype}` \| ([^|]*) \|", PAGE)
    assert row is not None
    assert set(getattr(event, "__struct_fields__", ())) <= set(re.findall(r"`(\w+)`", row[1]))
