"""`Interrupt`: one interrupt of a query, from the wish to stop its turn until that turn has ended.

`QueryTurn` says what has to be done (`InterruptStep`); this module does it. A prompt that the CLI has not begun with is
withdrawn, and needs no request, which could reach the turn of somebody else.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from pilothouse.engine.child import INTERRUPT_SECONDS, ChildRun
from pilothouse.engine.turn import InterruptStep, Phase
from pilothouse.errors import ControlTimeout, PilothouseError, SessionClosedError, UsageError

if TYPE_CHECKING:
    from pilothouse.engine.run import QueryRun

WITHDRAW_SECONDS = 2.0  # for the CLI to give words back; then an interrupt is sent regardless


class Interrupt:
    """One interrupt. `run` it once, from any task; see `QueryRun.interrupt`.

    Args:
        query: the run of the query.
        stop_background: whether to stop its background tasks too, and to drop what waits in the queue of the CLI.
    """

    def __init__(self, query: QueryRun, *, stop_background: bool) -> None:
        self._query = query
        self._stop_background = stop_background
        self._ended_turns = 0  # before the interrupt

    async def run(self) -> None:
        """Stop the turn and wait until it has ended; see `QueryRun.interrupt`."""
        query, turn, child = self._query, self._query.turn, self._query.child
        if turn.is_abandoned:  # it has failed, or was left, and is being stopped: that stays the reason
            await query.wait_finished()
            return
        is_interruptible = turn.is_interruptible(child_in_turn=self._is_child_in_turn)
        has_work = child is not None and child.activity.has_work
        if self._stop_background and has_work and (turn.phase is Phase.DECIDING or not is_interruptible):
            await query.request("interrupt", {"cancel_queued": True})  # otherwise it is the request that stops the turn
            is_interruptible = turn.is_interruptible(child_in_turn=self._is_child_in_turn)
        if (
            is_interruptible
            and turn.phase is not Phase.QUEUED
            and child is not None
            and child.invocation.initialize is None
        ):
            raise UsageError(
                "interrupt needs the control protocol, which the argv form does not have: use prompt_via='stdin'"
            )
        self._ended_turns = turn.ended_turns
        step = turn.interrupt(child_in_turn=self._is_child_in_turn, is_preparing=self._is_preparing)
        query.act_on_turn()
        if step is InterruptStep.NOTHING:
            return
        if step is InterruptStep.STOP:
            query.stop()
            await query.wait_finished()
            return
        try:
            await self._carry_out(step)
        except PilothouseError as error:
            if query.is_finished or isinstance(error, SessionClosedError):
                return  # the query ended by itself in the meantime
            turn.refuse_interrupt()
            query.act_on_turn()
            raise
        except anyio.get_cancelled_exc_class():
            if not turn.is_answering:  # nothing was stopped yet: what becomes of the prompts is up to the CLI again
                turn.refuse_interrupt()
                query.act_on_turn()
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await query.changes.wait_until(self._has_ended)
            return
        query.stop()

    @property
    def _is_child_in_turn(self) -> bool:
        child = self._query.child
        return child is not None and child.activity.is_in_turn

    @property
    def _is_preparing(self) -> bool:
        query = self._query
        return query.turn.phase is not Phase.QUEUED and query.child is not None and query.child.channel.is_preparing

    def _has_ended(self) -> bool:
        """Whether the turn that is to be stopped has ended."""
        turn = self._query.turn
        return turn.ended_turns > self._ended_turns or turn.phase is Phase.ENDED

    async def _carry_out(self, step: InterruptStep) -> None:
        if step in (InterruptStep.CANCEL_DECISION, InterruptStep.CANCEL_DECISION_AND_REQUEST):
            self._query.cancel_decision()
        if step is InterruptStep.CANCEL_DECISION:
            return
        if step is InterruptStep.WITHDRAW:
            await self._withdraw()
        else:
            assert self._query.child is not None
            await self._request(self._query.child)

    async def _withdraw(self) -> None:
        query, turn = self._query, self._query.turn
        await query.changes.wait_until(lambda: not turn.is_sending)
        child = query.child  # another one may have taken over
        assert child is not None
        try:
            await child.withdraw_prompts(query)
            step = turn.after_withdrawal(child_in_turn=child.activity.is_in_turn)
            while step is InterruptStep.WAIT and not self._has_ended():
                await query.changes.wait()
                step = turn.after_withdrawal(child_in_turn=child.activity.is_in_turn)
            is_turn_left = step is InterruptStep.REQUEST and not self._has_ended()
            is_background_left = self._stop_background and child.router.query is query and child.activity.has_work
            if is_turn_left or is_background_left:
                await self._request(child)
        finally:
            turn.end_withdrawal()
            query.act_on_turn()

    async def _request(self, child: ChildRun) -> None:
        if not self._stop_background:  # that request drops what waits in the queue of the CLI
            with anyio.move_on_after(WITHDRAW_SECONDS), suppress(ControlTimeout):
                for uuid in self._query.turn.returnable:  # else the CLI would go on with them
                    await child.withdraw_prompt(self._query, uuid)
            if self._has_ended():  # the request would stop the turn of another query
                return
        await child.interrupt(self._query, cancel_queued=self._stop_background)
