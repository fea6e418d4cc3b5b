"""The page about retries and timeouts says what is so: defaults, words, times, events and their fields."""

from __future__ import annotations

import re

import pytest
from markdown_pages import DOCS, prose

from pilothouse import events
from pilothouse.client import retry
from pilothouse.engine import activity, child, interrupt, limits
from pilothouse.options import TABLE, RetryPolicy
from pilothouse.options.value_structs import RETRY_REASONS

PAGE = " ".join(prose(DOCS / "retries-and-timeouts.md").split())


def test_the_page_quotes_the_texts_for_the_model() -> None:
    assert f'"{retry.CONTINUE_PROMPT}"' in PAGE
    assert f"does not repeat a prompt of more than {retry.REPEATED_BYTES // 1024} KiB" in PAGE


def test_the_policy_and_its_defaults() -> None:
    assert set(RetryPolicy.__struct_fields__) <= set(re.findall(r"`(\w+)`", PAGE))
    policy = RetryPolicy()
    assert f"| `attempts` | {policy.attempts} |" in PAGE
    delays = f"{policy.first_delay:g} s, {policy.multiplier:g}, {policy.max_delay:g} s"
    assert f"| `first_delay`, `multiplier`, `max_delay` | {delays} |" in PAGE
    assert f"| `jitter` | {policy.jitter} |" in PAGE
    assert policy.on == RETRY_REASONS
    assert all(f'`"{reason}"`' in PAGE for reason in RETRY_REASONS)
    assert f"`usage_limit_ceiling` ({TABLE['usage_limit_ceiling'].default / 3600:g} hours)" in PAGE


def test_the_times() -> None:
    assert limits.WARNING_FRACTION == 0.5
    assert "At half of the limit" in PAGE
    assert f"counts as running for {activity.LOST_RESULT_SECONDS / 60:g} more minutes" in PAGE
    assert f"({child.INTERRUPT_RESPONSE_SECONDS:g} s to respond, {child.SAVE_SECONDS:g} s to end)" in PAGE
    assert f"does not stop within {interrupt.INTERRUPT_SECONDS:g} s is replaced" in PAGE


@pytest.mark.parametrize(
    ("event", "subtype"),
    [
        (events.RetryScheduled, retry.RETRY_SCHEDULED),
        (events.WaitingForLimit, retry.LIMIT_WAIT),
        (events.Stalled, limits.STALLED),
    ],
)
def test_events_their_messages_and_their_fields(event: type, subtype: str) -> None:
    row = re.search(rf"\| `{event.__name__}` \| `{subtype}` \| ([^|]*) \|", PAGE)
    assert row is not None
    assert set(getattr(event, "__struct_fields__", ())) <= set(re.findall(r"`(\w+)`", row[1]))
