"""Silence of the CLI: two phases, one warning for each silence, the end at the limit. No clock runs here."""

from __future__ import annotations

import anyio
import pytest

from pilothouse.engine.activity import ChildActivity
from pilothouse.engine.limits import QueryLimits, TimeLimits
from pilothouse.messages import ApiRetryMessage


def make_limits(idle: float | None = None, startup: float | None = None) -> TimeLimits:
    return TimeLimits(QueryLimits(None, idle, 60.0, 1000, startup), "it was ended")


def test_nothing_has_silence_limit_by_default() -> None:
    assert not make_limits().has_silence_limit
    assert make_limits().track_silence(0.0, 1e9, has_received=False) is None


def test_a_warning_comes_at_half_of_the_limit_and_once() -> None:
    watch = make_limits(idle=10.0)
    assert watch.has_silence_limit
    early = watch.track_silence(100.0, 104.9, has_received=True)
    assert early is not None
    assert (early.next_check_at, early.note, early.error) == (105.0, None, None)
    half = watch.track_silence(100.0, 105.0, has_received=True, session_id="s1")
    assert half is not None
    assert half.next_check_at == 110.0
    assert half.note is not None
    assert (half.note.subtype, half.note.session_id) == ("stalled", "s1")
    assert {k: half.note.raw[k] for k in ("seconds", "limit", "phase")} == {
        "seconds": 5.0,
        "limit": 10.0,
        "phase": "idle",
    }
    again = watch.track_silence(100.0, 107.0, has_received=True)
    assert again is not None
    assert (again.next_check_at, again.note) == (110.0, None)
    over = watch.track_silence(100.0, 110.0, has_received=True)
    assert over is not None
    assert over.error is not None
    assert (over.error.seconds, over.error.kind) == (10.0, "idle_timeout")


def test_each_silence_has_its_own_warning() -> None:
    watch = make_limits(idle=10.0)
    looks = [watch.track_silence(since, since + 6.0, has_received=True) for since in (0.0, 20.0, 20.0, 40.0)]
    assert [look is not None and look.note is not None for look in looks] == [True, True, False, True]


@pytest.mark.parametrize(
    ("idle", "startup", "received", "limit", "kind"),
    [
        (10.0, None, False, 10.0, "idle_timeout"),
        (10.0, 30.0, False, 30.0, "startup_timeout"),
        (10.0, 30.0, True, 10.0, "idle_timeout"),
        (None, 30.0, False, 30.0, "startup_timeout"),
    ],
)
def test_the_phases_have_limits_of_their_own(
    idle: float | None, startup: float | None, received: bool, limit: float, kind: str
) -> None:
    watch = make_limits(idle, startup)
    before = watch.track_silence(0.0, limit - 0.1, has_received=received)
    after = watch.track_silence(0.0, limit, has_received=received)
    assert before is not None
    assert after is not None
    error = after.error
    assert before.error is None
    assert error is not None
    assert (error.seconds, error.kind) == (limit, kind)
    assert f"option {kind}" in str(error)
    assert ("since its last message" if received else "before it began to answer") in str(error)


def test_the_startup_limit_ends_with_the_first_message() -> None:
    watch = make_limits(startup=5.0)
    assert watch.track_silence(0.0, 1e6, has_received=True) is None


def test_a_long_limit_for_the_start_does_not_delay_the_shorter_one_after_it() -> None:
    watch = make_limits(idle=1.0, startup=20.0)
    look = watch.track_silence(0.0, 0.0, has_received=False)
    assert look is not None
    assert look.next_check_at == 0.5


def test_nothing_is_cut_unsaid() -> None:
    look = make_limits(idle=1.0).track_silence(0.0, 5.0, has_received=True)  # the event loop was blocked, for one
    assert look is not None
    assert look.note is not None
    assert look.error is not None
    assert look.error.seconds == 1.0


@pytest.mark.anyio
async def test_silence_counts_from_what_was_sent_last() -> None:
    watch = make_limits(idle=10.0)
    watch.restart_silence()
    sent = anyio.current_time()
    look = watch.track_silence(sent - 100.0, sent, has_received=True)
    assert look is not None
    assert look.note is None
    assert sent + 4.9 <= look.next_check_at <= sent + 5.0


@pytest.mark.anyio
async def test_a_wait_that_was_announced_is_no_make_limits() -> None:
    now = anyio.current_time()
    activity = ChildActivity()
    activity.touch()
    activity.note(ApiRetryMessage(retry_delay_ms=30_000))
    assert now + 30 <= activity.last_activity <= anyio.current_time() + 30
    activity.touch()  # a tool that runs beside it shortens nothing
    activity.note(ApiRetryMessage(retry_delay_ms=-5))
    activity.note(ApiRetryMessage(retry_delay_ms=100))
    assert activity.last_activity >= now + 30
