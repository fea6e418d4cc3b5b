"""`QueryTurn`: the life of one query as a state machine. Pure: no I/O, no clock, no tasks; it never waits.

The engine reports every event by calling a method, and then reads what follows from it: *told first, then asked*.
Methods that ask change nothing. `format_transitions()` prints the table.

Phases:

    QUEUED     waits until no other query uses the child; nothing may be sent
    READY      may send; the CLI has no open prompt of this query
    SENDING    a prompt is being written, and may already have arrived
    SENT       the CLI has a prompt, and has not begun with it: it may be busy with a turn of its own
    ANSWERING  the CLI works on a prompt of this query
    DECIDING   every prompt is closed; the middlewares decide whether another one follows
    IDLING     every prompt is closed; the query lasts until the background work has ended
    ENDED      over

Rules:

1. A prompt is GIVEN (by the program), PENDING (the CLI may have it), ACCEPTED (the CLI has named it as begun), and in
   the end ANSWERED or CANCELLED, which is *closed*. A closed prompt stays closed.
2. A result answers the open prompts that it names. If it names none, it answers the oldest one, unless the CLI says
   that background work woke it: such a result answers nobody.
3. When the last prompt is closed and no further one will be given, the middlewares decide; when they add no prompt,
   background work may end; then the query is over. A query that is being stopped waits for neither.
4. While the CLI works on one of its prompts, all messages belong to the query. With `until_idle`, so do the messages of
   background work, from the first result on. A CLI that never names what it begins with works on nothing else.
5. An interrupt stops one turn. When more prompts are to come, the query goes on as if there had been none.
6. The first reason to stop stays the reason. `is_abandoned` is kept apart: it says that nobody waits for the answer any
   more, whatever stopped the query, and that the CLI still has to end its turn.
7. A query that ends early remembers in which phase it was. The answer is complete only if nothing was unanswered,
   undecided or still running.
8. The end is final. Results that come later close their prompts, and change nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Final


class Phase(Enum):
    """Where a query is in its life."""

    QUEUED = auto()
    READY = auto()
    SENDING = auto()
    SENT = auto()
    ANSWERING = auto()
    DECIDING = auto()
    IDLING = auto()
    ENDED = auto()


class StopReason(Enum):
    """Why a query stops before its answer is complete."""

    NONE = auto()
    INTERRUPTED = auto()  # somebody wanted that, or every prompt was cancelled: it ends without an error
    FAILED = auto()  # anything else, such as a limit or a closed query; the error of the run says what


class PromptState(Enum):
    """What has become of a prompt."""

    GIVEN = auto()
    PENDING = auto()
    ACCEPTED = auto()
    ANSWERED = auto()
    CANCELLED = auto()


class LastResult(Enum):
    """What the last result means for the end of the query."""

    NONE = auto()
    REPORT = auto()  # of background work: the middlewares are not asked
    ANSWER = auto()  # the middlewares have yet to be asked
    REFUSAL = auto()  # so too, and the CLI will not begin with any prompt
    DECIDED = auto()  # the middlewares were asked


class TurnEvent(Enum):
    """What moves a query from one phase to the next."""

    ENTER = "the query has the child"
    SEND = "the engine begins to write a prompt"
    WRITTEN = "the prompt is written"
    BEGIN = "the CLI begins to work on a prompt"
    TAKE_BACK_BEGIN = "it was a turn of the CLI's own, which does name its prompts"
    NEXT_WAITS = "answered; the CLI has another prompt, and has not begun with it"
    NEXT_RUNS = "answered; the CLI is already at work on another prompt"
    CLI_HAS_NONE = "closed; another prompt has yet to be given or sent"
    ASK = "all closed; the middlewares decide"
    WAIT_FOR_IDLE = "all closed; background work may go on"
    ADD_PROMPT = "the middlewares add a prompt"
    END = "nothing follows"
    DROP_DECISION = "the middlewares were cancelled by an interrupt"
    FAIL = "the query ends early"
    CHANGE_CHILD = "the child has exited without receiving anything; another one takes over"


class InterruptStep(Enum):
    """What the engine has to do for an interrupt."""

    NOTHING = "no turn runs"
    STOP = "nothing was sent: stop the query"
    CANCEL_DECISION = "cancel the middlewares"
    CANCEL_DECISION_AND_REQUEST = "cancel the middlewares, and request the end of the CLI's own turn"
    WITHDRAW = "when the prompt is written, withdraw what the CLI has not begun; then ask again with `after_withdrawal`"
    WAIT = "wait for the next change, and ask again"
    REQUEST = "request the end of the turn"


class ImpossibleEventError(Exception):
    """An event that cannot happen in this phase: the engine has a defect."""


_CLOSED: Final = (PromptState.ANSWERED, PromptState.CANCELLED)
_AT_CLI: Final = (PromptState.PENDING, PromptState.ACCEPTED)


def _make_transitions() -> Mapping[Phase, Mapping[TurnEvent, Phase]]:
    phase, event = Phase, TurnEvent
    end = {event.END: phase.ENDED, event.FAIL: phase.ENDED}
    all_closed = {event.ASK: phase.DECIDING, event.WAIT_FOR_IDLE: phase.IDLING, **end}
    closed = {event.CLI_HAS_NONE: phase.READY, **all_closed}
    return {
        phase.QUEUED: {event.ENTER: phase.READY, event.FAIL: phase.ENDED},
        phase.READY: {event.SEND: phase.SENDING, **all_closed},
        phase.SENDING: {event.WRITTEN: phase.SENT, event.BEGIN: phase.ANSWERING, **closed},
        phase.SENT: {event.SEND: phase.SENDING, event.BEGIN: phase.ANSWERING, **closed},
        phase.ANSWERING: {
            event.TAKE_BACK_BEGIN: phase.SENT,
            event.NEXT_WAITS: phase.SENT,
            event.NEXT_RUNS: phase.ANSWERING,
            **closed,
        },
        phase.DECIDING: {
            event.ADD_PROMPT: phase.READY,
            event.WAIT_FOR_IDLE: phase.IDLING,
            event.DROP_DECISION: phase.ENDED,
            **end,
        },
        phase.IDLING: {event.ASK: phase.DECIDING, **end},
        phase.ENDED: {event.CHANGE_CHILD: phase.READY},
    }


TRANSITIONS: Final = _make_transitions()
"""For each phase, where each event leads. What is missing cannot happen."""


def format_transitions() -> str:
    """Return the table as text, one transition a line."""
    rows = [
        f"{phase.name:9}  {event.name:15}  {after.name:9}  {event.value}"
        for phase, row in TRANSITIONS.items()
        for event, after in row.items()
    ]
    return "\n".join(["phase      event            then       meaning", *rows])


class QueryTurn:
    """One query.

    Args:
        prompts: the uuids of the prompts that are known from the start. A prompt in the arguments needs one, too.
        all_given: whether no further prompts come. Default True.
        has_own_child: whether the child serves this query only, so that every message belongs to it. Default False.
        until_idle: whether the query lasts until background work has ended. Default False.
        has_middleware: whether somebody decides what follows the last result. Default False.

    Attributes:
        phase: where it is.
        stop_reason: why it stops.
        prompts: what has become of each prompt, oldest first. When the middlewares add one, it takes the place of all
            earlier ones, which are closed.
        all_given: whether no further prompts come.
        is_abandoned: whether nobody waits for its answer any more.
        has_output: whether the CLI has said anything that may belong to the query.
        ended_turns: how many turns of this query have ended. Who interrupts one waits until this grows.
        ended_in: the phase in which it ended early; None if it did not.
        has_own_child: whether the child serves this query only.
        taken_in: how many turns had ended when the CLI took each prompt, for those that it has taken.
    """

    def __init__(
        self,
        prompts: Iterable[str] = (),
        *,
        all_given: bool = True,
        has_own_child: bool = False,
        until_idle: bool = False,
        has_middleware: bool = False,
    ) -> None:
        self.phase = Phase.QUEUED
        self.stop_reason = StopReason.NONE
        self.prompts = dict.fromkeys(prompts, PromptState.GIVEN)
        self.all_given = all_given
        self.is_abandoned = False
        self.has_output = False
        self.ended_turns = 0
        self.ended_in: Phase | None = None
        self.taken_in: Mapping[str, int] = {}
        self.has_own_child = has_own_child
        self._until_idle = until_idle
        self._has_middleware = has_middleware
        self._last_result = LastResult.NONE
        self._returnable: frozenset[str] = frozenset()

    # What is the case.

    @property
    def open_prompts(self) -> list[str]:
        """Prompts that are not closed, oldest first."""
        return [uuid for uuid, state in self.prompts.items() if state not in _CLOSED]

    @property
    def at_cli(self) -> list[str]:
        """Open prompts that the CLI may have, oldest first."""
        return [uuid for uuid, state in self.prompts.items() if state in _AT_CLI]

    @property
    def returnable(self) -> list[str]:
        """Returnable prompts that the CLI has and may still give back."""
        return [uuid for uuid in self.at_cli if uuid in self._returnable and self.prompts[uuid] is PromptState.PENDING]

    @property
    def is_sending(self) -> bool:
        """Whether a prompt is on its way to the CLI."""
        return self.phase is Phase.SENDING or (self.phase is Phase.READY and bool(self.open_prompts))

    @property
    def has_begun(self) -> bool:
        """Whether it has had the child, and could send."""
        return (self.ended_in or self.phase) is not Phase.QUEUED

    @property
    def is_answering(self) -> bool:
        """Whether the CLI works on a prompt of this query, or did so when the query failed."""
        return (self.ended_in or self.phase) is Phase.ANSWERING

    @property
    def has_closed_prompt(self) -> bool:
        """Whether a prompt is closed, or the CLI has refused to begin."""
        return self._last_result is LastResult.REFUSAL or any(state in _CLOSED for state in self.prompts.values())

    @property
    def is_interrupted(self) -> bool:
        """Whether it stops, or has stopped, because somebody wanted that."""
        return self.stop_reason is StopReason.INTERRUPTED

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the turn is awaited, so that nothing may hold it up."""
        return self.is_interrupted or self.is_abandoned

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete if the query ends now."""
        if self.is_abandoned or (self.ended_in or self.phase) in (Phase.DECIDING, Phase.IDLING):
            return False
        return self._last_result is LastResult.REFUSAL or self._is_answered

    @property
    def is_cut_short(self) -> bool:
        """Whether the last result, if any, belongs to an earlier prompt. Valid at the end."""
        newest = next(reversed(self.prompts.values()), None)
        return self.is_interrupted and (newest is PromptState.CANCELLED or not self.is_complete)

    @property
    def owns_background(self) -> bool:
        """Whether what background work says belongs to this query."""
        has_result = self._last_result is not LastResult.NONE
        return self._until_idle and has_result and self.phase is not Phase.ENDED

    @property
    def can_steer(self) -> bool:
        """Whether another prompt reaches the turn that runs, or the one that is about to."""
        return self.phase in (Phase.READY, Phase.SENDING, Phase.SENT, Phase.ANSWERING) and not self.is_stopping

    def owns_message(self, *, reports_starts: bool) -> bool:
        """Whether a message other than a result belongs to this query.

        Args:
            reports_starts: whether the CLI reports when it begins with a prompt.
        """
        if self.has_own_child or self.owns_background:
            return True
        return self.phase is Phase.ANSWERING or (not reports_starts and bool(self.at_cli))

    def owns_result(self, answered: Collection[str], *, is_woken: bool, reports_starts: bool) -> bool:
        """Whether a result belongs to this query.

        Args:
            answered: the prompts that it names.
            is_woken: whether the CLI says that background work woke it.
            reports_starts: whether the CLI reports when it begins with a prompt.
        """
        if self.has_own_child:
            return True
        if not self.at_cli:
            return self.owns_background
        if not set(answered).isdisjoint(self.open_prompts):
            return True
        if is_woken:
            return self.owns_background
        return not answered and (self.phase is Phase.ANSWERING or not reports_starts)

    def counts_result(self, answered: Collection[str], *, is_woken: bool, reports_starts: bool) -> bool:
        """Whether a result tells how a turn of this query ended. If so, call `add_result`; the arguments are as above.

        Each that belongs to the query does, with one exception, which a query with its own child shows all the same.
        """
        if not self.has_own_child:
            return self.owns_result(answered, is_woken=is_woken, reports_starts=reports_starts)
        # After resuming an interrupted tool call, the CLI first sends a result of its own.
        has_begun = PromptState.ACCEPTED in self.prompts.values() or self.ended_turns > 0
        return has_begun or not reports_starts or self.is_interrupted or not set(answered).isdisjoint(self.open_prompts)

    def keeps_result(self, answered: Collection[str], *, is_woken: bool) -> bool:
        """Whether a result becomes the result of the query: one of background work does so only if there is no other.

        Args:
            answered: the prompts that it names.
            is_woken: whether the CLI says that background work woke it.
        """
        is_answer = not is_woken or not set(answered).isdisjoint(self.open_prompts)
        return is_answer or self._last_result is LastResult.NONE

    @property
    def may_end_here(self) -> bool:
        """Whether nothing is missing if its child ends now: the answer is complete, or nobody wants the rest."""
        return self.is_complete or self.is_interrupted

    def is_interruptible(self, *, child_in_turn: bool) -> bool:
        """Whether there is something that an interrupt would stop.

        Args:
            child_in_turn: whether the CLI works on a turn, for a prompt or on its own.
        """
        if self.phase is Phase.ENDED:
            return False
        is_idle = self.has_closed_prompt and not self.open_prompts and not (self.owns_background and child_in_turn)
        return self.phase is Phase.DECIDING or not is_idle

    # What the engine does.

    def enter(self) -> None:
        """The query has the child, and may send."""
        self._move(TurnEvent.ENTER)

    def give(self, uuid: str, *, is_returnable: bool = False) -> None:
        """The program gives another prompt; `is_returnable`: the query is complete without it, too."""
        self.prompts[uuid] = PromptState.GIVEN
        if is_returnable:
            self._returnable |= {uuid}

    def give_no_more(self) -> None:
        """The program has given its last prompt."""
        self.all_given = True
        self._settle()

    def send(self, *uuids: str) -> None:
        """The engine begins to write these prompts."""
        sent = [uuid for uuid in uuids if self.prompts.get(uuid) is PromptState.GIVEN]
        self.prompts.update(dict.fromkeys(sent, PromptState.PENDING))
        if sent and self.phase in (Phase.READY, Phase.SENT):
            self._move(TurnEvent.SEND)

    def mark_written(self) -> None:
        """What the engine began to write is written."""
        if self.phase is Phase.SENDING:
            self._move(TurnEvent.WRITTEN)

    def interrupt(self, *, child_in_turn: bool, is_preparing: bool = False) -> InterruptStep:
        """Stop the turn. Returns what the engine has to do for that.

        Args:
            child_in_turn: whether the CLI works on a turn, for a prompt or on its own.
            is_preparing: whether handlers prepare, after the handshake and before the first prompt. Default False.
        """
        if not self.is_interruptible(child_in_turn=child_in_turn):
            if self.phase is Phase.IDLING:
                self._move(TurnEvent.END)
            return InterruptStep.NOTHING
        self._stop_for(StopReason.INTERRUPTED)
        if self.phase is Phase.QUEUED or is_preparing or not self.prompts:
            return InterruptStep.STOP
        if self.phase is Phase.DECIDING:
            has_turn = self.owns_background and child_in_turn
            return InterruptStep.CANCEL_DECISION_AND_REQUEST if has_turn else InterruptStep.CANCEL_DECISION
        return InterruptStep.REQUEST if self.phase in (Phase.ANSWERING, Phase.IDLING) else InterruptStep.WITHDRAW

    def after_withdrawal(self, *, child_in_turn: bool) -> InterruptStep:
        """What an interrupt has to do after `WITHDRAW` or `WAIT`; when all is done, call `end_withdrawal`.

        Args:
            child_in_turn: whether the CLI works on a turn, for a prompt or on its own.
        """
        if self.phase is Phase.ENDED:
            return InterruptStep.NOTHING
        if self.open_prompts:
            return InterruptStep.REQUEST if self.phase is Phase.ANSWERING else InterruptStep.WAIT
        return InterruptStep.REQUEST if self.owns_background and child_in_turn else InterruptStep.NOTHING

    def end_withdrawal(self) -> None:
        """The interrupt has withdrawn what it could; if no prompt is left, that was the end of the turn.

        Not before: otherwise the next query could begin, and the interrupt would reach it.
        """
        is_over = self.is_interrupted and self.has_closed_prompt and not self.open_prompts
        if is_over and self.phase in (Phase.READY, Phase.SENDING, Phase.SENT, Phase.ANSWERING):
            self._end_turn()

    def refuse_interrupt(self) -> None:
        """The interrupt has failed, or was given up: the query goes on, unless it has ended meanwhile."""
        if not self.is_interrupted or Phase.DECIDING in (self.phase, self.ended_in):
            return  # a decision that was cancelled stays so
        self.end_withdrawal()  # and so does a prompt that was withdrawn
        if self.ended_in is not None:
            self.stop_reason = StopReason.FAILED
        elif self.phase is not Phase.ENDED:
            self.stop_reason = StopReason.NONE

    def decide(self, uuid: str | None) -> None:
        """The middlewares have decided: another prompt, or None."""
        if self.phase is not Phase.DECIDING:
            return
        if uuid is not None:
            self.prompts = {uuid: PromptState.GIVEN}
            if self._last_result is LastResult.REFUSAL:  # it has come meanwhile, and was not about this prompt
                self._last_result = LastResult.ANSWER
            self._move(TurnEvent.ADD_PROMPT)
        elif self._until_idle and not self.is_stopping:
            self._move(TurnEvent.WAIT_FOR_IDLE)
        else:
            self._move(TurnEvent.END)

    def drop_decision(self) -> None:
        """The middlewares were cancelled, and have decided nothing."""
        self.ended_turns += 1
        if self.phase is Phase.DECIDING and self.is_interrupted:
            self.ended_in = self.phase
            self._move(TurnEvent.DROP_DECISION)

    def mark_idle(self) -> None:
        """Background work has ended."""
        if self.phase is Phase.IDLING:
            self._move(TurnEvent.END)

    def abandon(self) -> None:
        """Nobody waits for the answer any more, but the CLI has to end its turn."""
        self.is_abandoned = True
        self._stop_for(StopReason.FAILED)

    def fail(self) -> None:
        """The query ends early. No effect after its end."""
        if self.phase is not Phase.ENDED:
            self._stop_for(StopReason.FAILED)
            self.ended_in = self.phase
            self._move(TurnEvent.FAIL)

    def change_child(self) -> None:
        """Another child takes over from one that has received nothing."""
        self.prompts = dict.fromkeys(self.prompts, PromptState.GIVEN)
        self.stop_reason, self.ended_in = StopReason.NONE, None
        self._move(TurnEvent.CHANGE_CHILD)

    # What the CLI says.

    def note_message(self, *, reports_starts: bool) -> None:
        """A message came that is no result.

        Args:
            reports_starts: whether the CLI reports when it begins with a prompt.
        """
        if self.has_own_child:
            self.has_output = True
        if not reports_starts:
            self._begin()

    def begin(self, uuid: str) -> None:
        """The CLI names a prompt that it begins with."""
        if self.prompts.get(uuid) in _AT_CLI:
            self.prompts[uuid] = PromptState.ACCEPTED
            self._mark_taken([uuid])
            self._begin()

    def take_back_begin(self) -> None:
        """This CLI does name what it begins with, so what came before was a turn of its own."""
        if self.phase is Phase.ANSWERING and PromptState.ACCEPTED not in self.prompts.values():
            self._move(TurnEvent.TAKE_BACK_BEGIN)

    def mark_cancelled(self, uuid: str) -> None:
        """The CLI has dropped a prompt. No effect if it has begun with that one, which gets a result."""
        if self.prompts.get(uuid) is not PromptState.PENDING:
            return
        self.prompts[uuid] = PromptState.CANCELLED
        self._leave_cli()
        if uuid in self._returnable:
            self._settle()
        elif not self.open_prompts and self.stop_reason is StopReason.NONE and self.phase is not Phase.ENDED:
            self.stop_reason = StopReason.INTERRUPTED
            self._end_turn()

    def add_result(self, answered: Collection[str], *, is_woken: bool, ignores_prompts: bool = False) -> None:
        """A result came that counts; see `counts_result`.

        Args:
            answered: the prompts that it names.
            is_woken: whether the CLI says that background work woke it.
            ignores_prompts: whether it says that the CLI will not begin with any prompt. Default False.
        """
        waiting = self.open_prompts
        named = [uuid for uuid in waiting if uuid in answered]
        is_answer = not is_woken or bool(named)
        if is_answer:
            self._last_result = LastResult.REFUSAL if ignores_prompts else LastResult.ANSWER
        elif self._last_result is LastResult.NONE:
            self._last_result = LastResult.REPORT
        if not is_answer and self.phase is not Phase.IDLING:
            return
        had_accepted = PromptState.ACCEPTED in self.prompts.values()
        if is_answer:
            closed = named or waiting[:1]
            self.prompts.update(dict.fromkeys(closed, PromptState.ANSWERED))
            self._mark_taken(closed)
        self._end_turn(had_accepted=had_accepted)

    def end_stream(self) -> None:
        """The stream says that it is over, without a result: what came is the answer."""
        self._answer_all()
        self._end_turn()

    def end_output(self, exit_code: int | None = None) -> None:
        """The query's own child has closed its output. Unless it `may_end_here`, that is an error.

        Args:
            exit_code: how the child exited; None: not known yet.
        """
        if exit_code == 0 and self.has_closed_prompt and self.all_given and self.phase is not Phase.DECIDING:
            self._answer_all()  # the CLI has merged prompts into one turn, and is too old to name them
            self.mark_idle()
        if self.may_end_here and self.phase is not Phase.ENDED:
            self._move(TurnEvent.END)

    # Inside.

    @property
    def _is_answered(self) -> bool:
        return self.all_given and bool(self.prompts) and not self.open_prompts

    def _stop_for(self, reason: StopReason) -> None:
        if self.stop_reason is StopReason.NONE:
            self.stop_reason = reason

    def _mark_taken(self, uuids: Iterable[str]) -> None:
        self.taken_in = {**dict.fromkeys(uuids, self.ended_turns), **self.taken_in}

    def _begin(self) -> None:
        if self.phase in (Phase.SENDING, Phase.SENT):
            self._move(TurnEvent.BEGIN)
        self.has_output |= self.phase is Phase.ANSWERING

    def _answer_all(self) -> None:
        self.prompts.update(dict.fromkeys(self.open_prompts, PromptState.ANSWERED))

    def _end_turn(self, *, had_accepted: bool = False) -> None:
        self.ended_turns += 1
        if self.phase is Phase.ENDED:
            return
        if self.is_interrupted and (self.open_prompts or not self.all_given):
            self.stop_reason = StopReason.NONE
        if self.phase is Phase.ANSWERING and self.at_cli:
            if PromptState.ACCEPTED in self.prompts.values():
                self._move(TurnEvent.NEXT_RUNS)
            elif had_accepted:
                self._move(TurnEvent.NEXT_WAITS)
        self._settle()

    def _settle(self) -> None:
        """Go on when the last prompt is closed."""
        if self.phase is Phase.DECIDING or self.phase is Phase.ENDED:
            return
        is_undecided = self._last_result in (LastResult.ANSWER, LastResult.REFUSAL)
        if not self._is_answered:
            self._leave_cli()
        elif self._has_middleware and is_undecided and not self.is_stopping:
            self._last_result = LastResult.DECIDED
            self._move(TurnEvent.ASK)
        elif not self._until_idle or self.is_stopping:
            self._move(TurnEvent.END)
        elif self.phase is not Phase.IDLING:
            self._move(TurnEvent.WAIT_FOR_IDLE)

    def _leave_cli(self) -> None:
        if self.phase in (Phase.SENDING, Phase.SENT, Phase.ANSWERING) and not self.at_cli:
            self._move(TurnEvent.CLI_HAS_NONE)

    def _move(self, event: TurnEvent) -> None:
        after = TRANSITIONS[self.phase].get(event)
        if after is None:
            raise ImpossibleEventError(f"{event.name} cannot happen in the phase {self.phase.name}")
        self.phase = after
