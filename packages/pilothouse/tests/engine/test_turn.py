"""`QueryTurn`: everything that can happen to one and two prompts, in every order, and longer lives at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.engine.turn import (
    TRANSITIONS,
    ImpossibleEventError,
    InterruptStep,
    LastResult,
    Phase,
    PromptState,
    QueryTurn,
    StopReason,
    TurnEvent,
    format_transitions,
)

CLOSED = (PromptState.ANSWERED, PromptState.CANCELLED)
WITH_CLI = (Phase.SENDING, Phase.SENT, Phase.ANSWERING)
KINDS: list[dict[str, Any]] = [
    dict(zip(("all_given", "has_own_child", "until_idle", "has_middleware"), values, strict=True))
    for values in product([True, False], repeat=4)
]
"""The arguments of every kind of query."""


class Step:
    """One call of a method.

    Args:
        name: of the method.
        *args: its arguments.
        when: whether an engine without defects, and any CLI, can get there.
        **options: its keyword arguments.
    """

    def __init__(
        self, name: str, *args: Any, when: Callable[[QueryTurn], bool] = lambda turn: True, **options: Any
    ) -> None:
        self.name, self.args, self.options, self._when = name, args, options, when

    def __repr__(self) -> str:
        return f"{self.name}({self.args}, {self.options})"

    def is_possible(self, turn: QueryTurn) -> bool:
        return self._when(turn)

    def take(self, turn: QueryTurn) -> None:
        getattr(turn, self.name)(*self.args, **self.options)
        if self.name == "end_output" and not turn.may_end_here:
            turn.fail()  # the engine reports the end of the child as an error


def has_child(turn: QueryTurn) -> bool:
    return turn.phase is not Phase.QUEUED


def is_streaming(turn: QueryTurn) -> bool:
    return has_child(turn) and not turn.all_given


def is_only_query(turn: QueryTurn) -> bool:
    return has_child(turn) and turn.has_own_child


def is_undelivered(turn: QueryTurn) -> bool:
    return (
        turn.ended_in is not None
        and turn.stop_reason is StopReason.FAILED
        and not (turn.has_output or turn.is_abandoned)
    )


def is_unfinished(turn: QueryTurn) -> bool:
    return turn.phase is not Phase.ENDED or turn.ended_in is not None


def may_send(uuid: str) -> Callable[[QueryTurn], bool]:
    def is_next(turn: QueryTurn) -> bool:
        unsent = [each for each, state in turn.prompts.items() if state is PromptState.GIVEN]
        return unsent[:1] == [uuid] and turn.phase in (Phase.READY, *WITH_CLI)

    return is_next


def counts(names: tuple[str, ...], *, is_woken: bool) -> Callable[[QueryTurn], bool]:
    return lambda turn: has_child(turn) and turn.counts_result(names, is_woken=is_woken, reports_starts=True)


STEPS = [
    *[Step("note_message", reports_starts=names, when=has_child) for names in (True, False)],
    *[Step(name, uuid, when=has_child) for name in ("begin", "mark_cancelled") for uuid in "ab"],
    Step("take_back_begin", when=has_child),
    *[
        Step("add_result", names, is_woken=is_woken, when=counts(names, is_woken=is_woken))
        for names in ((), ("a",), ("b",), ("a", "b"), ("x",))
        for is_woken in (True, False)
    ],
    Step("add_result", (), is_woken=False, ignores_prompts=True, when=counts((), is_woken=False)),
    Step("end_stream", when=is_only_query),
    Step("end_output", when=is_only_query),
    Step("end_output", 0, when=is_only_query),
    Step("enter", when=lambda turn: turn.phase is Phase.QUEUED),
    Step("give", "b", when=lambda turn: is_streaming(turn) and "b" not in turn.prompts),
    *[
        Step("give", "b", is_returnable=is_returnable, when=lambda turn: turn.can_steer and "b" not in turn.prompts)
        for is_returnable in (False, True)
    ],
    Step("give_no_more", when=lambda turn: is_streaming(turn) and bool(turn.prompts)),
    *[Step("send", uuid, when=may_send(uuid)) for uuid in "ab"],
    Step("mark_written"),
    *[Step("interrupt", child_in_turn=child_in_turn) for child_in_turn in (True, False)],
    Step("refuse_interrupt"),
    Step("end_withdrawal"),
    Step("decide", None),
    Step("decide", "b"),
    Step("drop_decision"),
    Step("mark_idle"),
    Step("abandon", when=is_unfinished),
    Step("fail"),
    Step("change_child", when=is_undelivered),
]


def clone(turn: QueryTurn) -> QueryTurn:
    other = copy(turn)
    other.prompts = dict(turn.prompts)
    return other


def state_of(turn: QueryTurn) -> tuple[object, ...]:
    facts = {name: value for name, value in vars(turn).items() if name not in ("prompts", "ended_turns", "taken_in")}
    return (*facts.values(), turn.ended_turns > 0, *turn.prompts.items())


def check_rules(before: QueryTurn, step: Step, after: QueryTurn) -> None:
    if step.name != "change_child":
        if before.phase is Phase.ENDED:
            assert (after.phase, after.ended_in) == (Phase.ENDED, before.ended_in)
            assert after.stop_reason is before.stop_reason or step.name == "refuse_interrupt"
        assert before.stop_reason is StopReason.NONE or after.stop_reason in (
            before.stop_reason,
            StopReason.NONE,
            StopReason.FAILED,
        )
    if step.name not in ("change_child", "decide"):
        for uuid, state in before.prompts.items():
            assert state not in CLOSED or after.prompts[uuid] is state
    assert has_child(after) or not has_child(before)
    if after.phase in (Phase.DECIDING, Phase.IDLING):
        assert after.all_given
        assert after.prompts
        assert not after.open_prompts
    if after.phase is not Phase.ENDED:
        assert bool(after.at_cli) == (after.phase in WITH_CLI)
    if after.is_complete:
        assert not after.open_prompts or after._last_result is LastResult.REFUSAL
    if after.is_stopping and before.phase not in (Phase.DECIDING, Phase.IDLING):
        assert after.phase not in (Phase.DECIDING, Phase.IDLING)
    if not after._until_idle:
        assert after.phase is not Phase.IDLING
        assert not after.owns_background
    if not (after._has_middleware and after._last_result is not LastResult.NONE):
        assert after.phase is not Phase.DECIDING
    if not (after.has_own_child or after.at_cli):
        assert after.owns_message(reports_starts=True) == after.owns_background


def ask_everything(turn: QueryTurn) -> None:
    for name, asked in vars(QueryTurn).items():
        if isinstance(asked, property):
            getattr(turn, name)
    for yes in (True, False):
        turn.owns_message(reports_starts=yes)
        turn.is_interruptible(child_in_turn=yes)
        for names, woken in product([(), ("a",), ("x",)], [True, False]):
            turn.owns_result(names, is_woken=woken, reports_starts=yes)
            turn.counts_result(names, is_woken=woken, reports_starts=yes)
            turn.keeps_result(names, is_woken=woken)


def explore(kind: Mapping[str, Any], prompts: str) -> Iterator[tuple[QueryTurn, Step, QueryTurn, bool]]:
    """Every state that can be reached, with each step that is possible there; and whether its end is a new state."""
    first = QueryTurn(prompts, **kind)
    known, left = {state_of(first)}, [first]
    while left:
        before = left.pop()
        for step in STEPS:
            if step.is_possible(before):
                after = clone(before)
                step.take(after)
                state = state_of(after)
                is_new = state not in known
                yield before, step, after, is_new
                if is_new:
                    known.add(state)
                    left.append(after)


def live_on(turn: QueryTurn) -> None:
    """Everybody does what has to be done, and nothing else happens: the query must end."""
    if turn.phase is Phase.QUEUED:
        turn.enter()
    if turn.is_interrupted:
        turn.end_withdrawal()
        turn.drop_decision()
    if not turn.all_given:
        turn.give("z")
        turn.give_no_more()
    if turn.is_abandoned:
        turn.fail()
    for uuid in turn.open_prompts:
        turn.send(uuid)
        turn.mark_written()
        turn.begin(uuid)
        turn.add_result((uuid,), is_woken=False)
    turn.decide(None)
    turn.mark_idle()


def check_all_states(kind: Mapping[str, Any], prompts: str) -> None:
    count = 0
    for before, step, after, is_new in explore(kind, prompts):
        count += 1
        try:
            check_rules(before, step, after)
            if is_new:
                ask_everything(asked := clone(after))
                assert vars(asked) == vars(after)
                live_on(end := clone(after))
                assert end.phase is Phase.ENDED
        except AssertionError as error:
            error.add_note(f"{before.phase} {before.prompts} {step} -> {after.phase} {after.prompts}")
            raise
    assert count > 500


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_life_of_one_prompt_keeps_the_rules(kind: Mapping[str, Any]) -> None:
    check_all_states(kind, "a" if kind["all_given"] else "")


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_life_of_two_prompts_keeps_the_rules(kind: Mapping[str, Any]) -> None:
    check_all_states(kind, "ab" if kind["all_given"] else "a")


def test_every_transition_of_the_table_can_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[Phase, TurnEvent]] = set()

    def move(self: QueryTurn, event: TurnEvent) -> None:
        taken.add((self.phase, event))
        self.phase = TRANSITIONS[self.phase][event]

    monkeypatch.setattr(QueryTurn, "_move", move)
    for kind in KINDS:
        if not kind["has_own_child"]:
            for _ in explore(kind, "ab" if kind["all_given"] else ""):
                pass
    table = {(phase, event) for phase, row in TRANSITIONS.items() for event in row}
    assert table - taken == set()
    assert len(format_transitions().splitlines()) == len(table) + 1


def test_an_impossible_event_is_named() -> None:
    turn = QueryTurn("a")
    turn.enter()
    with pytest.raises(ImpossibleEventError, match="ENTER cannot happen in the phase READY"):
        turn.enter()


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(KINDS), steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_long_lives_keep_the_rules(kind: Mapping[str, Any], steps: list[Step]) -> None:
    turn = QueryTurn("a" if kind["all_given"] else "", **kind)
    for step in steps:
        if step.is_possible(turn):
            before = clone(turn)
            step.take(turn)
            check_rules(before, step, turn)
    live_on(turn)
    assert turn.phase is Phase.ENDED


@settings(max_examples=200, deadline=None)
@given(
    order=st.permutations("abcd"),
    is_named=st.lists(st.booleans(), min_size=4, max_size=4),
    is_interleaved=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_each_result_answers_its_own_prompt(order: list[str], is_named: list[bool], is_interleaved: list[bool]) -> None:
    turn = make_turn(order)
    for uuid, named, interleaved in zip(order, is_named, is_interleaved, strict=True):
        if interleaved:  # the CLI works on a turn of its own first
            turn.note_message(reports_starts=True)
            assert not turn.owns_message(reports_starts=True)
            assert not turn.owns_result((), is_woken=True, reports_starts=True)
            assert not turn.owns_result((), is_woken=False, reports_starts=True)
        turn.begin(uuid)
        assert turn.owns_message(reports_starts=True)
        names = (uuid,) if named else ()
        assert turn.owns_result(names, is_woken=False, reports_starts=True)
        assert turn.keeps_result(names, is_woken=False)
        turn.add_result(names, is_woken=False)
        assert turn.prompts[uuid] is PromptState.ANSWERED
    assert turn.phase is Phase.ENDED
    assert turn.is_complete


def make_turn(prompts: Any = "a", **kind: Any) -> QueryTurn:
    """A query whose prompts the CLI has received."""
    turn = QueryTurn(prompts, **kind)
    turn.enter()
    turn.send(*prompts)
    turn.mark_written()
    return turn


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], InterruptStep.STOP),
        ([Step("enter")], InterruptStep.WITHDRAW),
        ([Step("enter"), Step("send", "a")], InterruptStep.WITHDRAW),
        ([Step("enter"), Step("send", "a"), Step("mark_written")], InterruptStep.WITHDRAW),
        ([Step("enter"), Step("send", "a"), Step("begin", "a")], InterruptStep.REQUEST),
        ([Step("enter"), Step("send", "a"), Step("add_result", (), is_woken=False)], InterruptStep.CANCEL_DECISION),
        ([Step("fail")], InterruptStep.NOTHING),
    ],
)
def test_what_an_interrupt_has_to_do(steps: list[Step], expected: InterruptStep) -> None:
    turn = QueryTurn("a", has_middleware=True)
    for step in steps:
        step.take(turn)
    assert turn.interrupt(child_in_turn=False) is expected
    assert turn.is_interrupted == (expected is not InterruptStep.NOTHING)


def test_an_interrupt_while_handlers_prepare_sends_nothing() -> None:
    turn = QueryTurn("a")
    turn.enter()
    assert turn.interrupt(child_in_turn=False, is_preparing=True) is InterruptStep.STOP


def test_an_interrupt_between_the_prompts_of_a_stream_has_nothing_to_stop() -> None:
    turn = QueryTurn(all_given=False)
    turn.enter()
    turn.give("a")
    turn.send("a")
    turn.add_result((), is_woken=False)
    assert turn.interrupt(child_in_turn=True) is InterruptStep.NOTHING
    assert turn.stop_reason is StopReason.NONE


@pytest.mark.parametrize("child_in_turn", [True, False])
def test_a_withdrawal_ends_with_the_request_for_the_clis_own_turn(child_in_turn: bool) -> None:
    turn = make_turn(until_idle=True, has_middleware=True)
    turn.add_result((), is_woken=False)
    turn.decide("b")
    turn.send("b")
    turn.mark_written()
    assert turn.interrupt(child_in_turn=child_in_turn) is InterruptStep.WITHDRAW
    assert turn.after_withdrawal(child_in_turn=child_in_turn) is InterruptStep.WAIT
    turn.mark_cancelled("b")
    expected = InterruptStep.REQUEST if child_in_turn else InterruptStep.NOTHING
    assert turn.after_withdrawal(child_in_turn=child_in_turn) is expected
    assert turn.phase is not Phase.ENDED
    turn.end_withdrawal()
    assert turn.phase is Phase.ENDED
    assert turn.is_cut_short


def test_a_refused_interrupt_is_forgotten_unless_the_query_has_ended() -> None:
    running, failed, withdrawn, decided = make_turn(), make_turn(), make_turn(), make_turn(has_middleware=True)
    decided.add_result((), is_woken=False)
    for turn in (running, failed, withdrawn, decided):
        turn.interrupt(child_in_turn=False)
    failed.fail()
    withdrawn.mark_cancelled("a")
    for turn in (running, failed, withdrawn, decided):
        turn.refuse_interrupt()
    assert running.stop_reason is StopReason.NONE
    assert failed.stop_reason is StopReason.FAILED
    assert (withdrawn.stop_reason, withdrawn.phase) == (StopReason.INTERRUPTED, Phase.ENDED)
    assert decided.stop_reason is StopReason.INTERRUPTED


def test_a_limit_stays_the_reason_when_the_prompt_is_withdrawn() -> None:
    turn = make_turn()
    turn.abandon()
    turn.mark_cancelled("a")
    assert turn.stop_reason is StopReason.FAILED
    assert not turn.is_complete


def test_a_turn_of_the_clis_own_answers_no_prompt() -> None:
    turn = make_turn(has_middleware=True)
    assert turn.keeps_result((), is_woken=False)
    turn.add_result((), is_woken=False)
    turn.decide("b")
    turn.send("b")
    assert not turn.keeps_result((), is_woken=True)
    turn.add_result((), is_woken=True)
    assert turn.open_prompts == ["b"]
    assert not turn.is_complete
    turn.end_output(0)
    assert not turn.may_end_here


def test_only_the_last_result_can_be_a_refusal() -> None:
    turn = make_turn("ab", has_own_child=True)
    turn.add_result(("a",), is_woken=False, ignores_prompts=True)
    assert turn.is_complete
    turn.add_result((), is_woken=True)
    assert turn.is_complete
    turn.add_result(("x",), is_woken=False)
    assert turn.phase is Phase.ENDED


def test_background_work_ends_nothing_while_the_middlewares_decide() -> None:
    turn = make_turn(until_idle=True, has_middleware=True)
    turn.add_result((), is_woken=False)
    turn.decide(None)
    assert turn.phase is Phase.IDLING
    turn.add_result((), is_woken=False)  # an older CLI does not say that it was woken
    turn.mark_idle()
    assert turn.phase is Phase.DECIDING
    turn.decide("b")
    assert turn.phase is Phase.READY


def test_the_end_of_a_woken_turn_ends_what_is_interrupted() -> None:
    turn = make_turn(until_idle=True)
    turn.add_result((), is_woken=False)
    assert turn.interrupt(child_in_turn=True) is InterruptStep.REQUEST
    turn.add_result((), is_woken=True)
    assert turn.phase is Phase.ENDED


def test_the_first_named_prompt_takes_back_what_seemed_to_be_the_answer() -> None:
    turn = make_turn()
    turn.note_message(reports_starts=False)
    assert turn.is_answering
    turn.take_back_begin()
    assert turn.phase is Phase.SENT
    turn.begin("a")
    turn.take_back_begin()
    assert turn.is_answering


def test_another_child_gets_the_prompts_from_the_beginning() -> None:
    turn = make_turn()
    turn.fail()
    turn.change_child()
    assert (turn.phase, turn.open_prompts, turn.at_cli, turn.stop_reason) == (Phase.READY, ["a"], [], StopReason.NONE)
    assert turn.is_sending
