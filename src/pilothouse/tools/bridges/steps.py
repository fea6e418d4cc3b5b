"""What a query does after each answer of the model: run the calls in it, and go on with their results.

Owns the messages that this process puts into the stream in the CLI's place, and the limit on steps. Which calls an
answer holds, each bridge knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, structs

from pilothouse.messages import InitMessage, Message, PermissionDenial, ResultMessage, StatusMessage, from_dict, to_dict
from pilothouse.tools.blocks import model_content
from pilothouse.tools.bridges.host import HostCall, Ran, ToolHost

MAX_STEPS: Final = 200  # of a query without `max_turns`: a model that calls the same tool for ever has to end


class Step(Struct, frozen=True):
    """What comes next.

    Attributes:
        content: the next user message; None when there is none.
        messages: what belongs into the stream before it.
    """

    content: list[dict[str, Any]] | None = None
    messages: Sequence[Message] = ()


class Steps(Protocol):
    """One query, over as many answers of the model as it takes. Make a new one for each."""

    def read(self, batch: list[Message]) -> list[Message]:
        """Look at what the CLI says, in order; gives what the reader of the query gets for it."""
        ...

    async def go_on(self, result: ResultMessage) -> Step:
        """What comes after `result`."""
        ...


class Ledger:
    """What one query has done so far.

    Args:
        host: runs the calls.
        max_turns: how many answers of the model a query may have; None for `MAX_STEPS`.
    """

    def __init__(self, host: ToolHost, max_turns: int | None) -> None:
        self._host = host
        self._limit = max_turns or MAX_STEPS
        self._turns = 0
        self._denied: list[PermissionDenial] = []

    def note(self, message: Message) -> None:
        """Keep what hooks and rules have to know."""
        host = self._host
        if isinstance(message, InitMessage):
            host.mode = message.permission_mode or host.mode
            facts = {"session_id": message.session_id, "cwd": message.cwd, "permission_mode": host.mode}
            host.facts = {name: value for name, value in facts.items() if value}
        elif isinstance(message, StatusMessage) and message.permission_mode:
            host.mode = host.facts["permission_mode"] = message.permission_mode

    def closing(self, result: ResultMessage) -> ResultMessage:
        """`result`, with the calls that were denied here."""
        if not self._denied:
            return result
        return structs.replace(result, permission_denials=[*result.permission_denials, *self._denied])

    async def run(self, calls: Sequence[HostCall], result: ResultMessage) -> tuple[list[Ran], list[Message]]:
        """Run the calls in the answer that `result` closes, and give what the stream has to say of it.

        No results: nothing may come after it; the messages then close the query.
        """
        self._turns += max(1, int(result.num_turns or 0))
        ran = await self._host.run_all(calls)
        self._denied += [
            PermissionDenial(tool_name=each.call.name, tool_use_id=each.call.id, tool_input=dict(each.call.arguments))
            for each in ran
            if each.denied
        ]
        told = results_message(ran, result.session_id)
        if any(each.stops for each in ran):
            how = _INTERRUPTED if any(each.interrupts for each in ran) else _HOOK_STOPPED
        elif self._turns >= self._limit:  # the last calls have run, as those that the CLI runs itself
            how = _OUT_OF_TURNS | {"errors": [f"Reached maximum number of turns ({self._limit})"]}
        else:
            return ran, [told]
        return [], [told, self.closing(_ended(result, how))]


def tool_result(ran: Ran) -> dict[str, Any]:
    """The block that answers a call."""
    content = model_content(ran.result, ran.call.name)
    block = {"type": "tool_result", "tool_use_id": ran.call.id, "content": content}
    return {**block, "is_error": True} if ran.is_error else block


def results_message(ran: Sequence[Ran], session_id: str | None) -> Message:
    """The message by which the CLI tells the results of tools that it runs itself."""
    return from_dict(
        {
            "type": "user",
            "message": {"role": "user", "content": [tool_result(each) for each in ran]},
            "parent_tool_use_id": None,
            "session_id": session_id or "",
            "uuid": str(uuid.uuid4()),
        }
    )


# How the CLI (2.1.330) closes a query that ends with calls. It counts messages: the results are a turn, and so is its
# note of an interruption.
_HOOK_STOPPED: Final[dict[str, Any]] = {
    "subtype": "success", "terminal_reason": "hook_stopped", "is_error": False, "num_turns": 1, "result": "",
}  # fmt: skip
_INTERRUPTED: Final[dict[str, Any]] = {
    "subtype": "error_during_execution", "terminal_reason": "aborted_tools", "is_error": True, "num_turns": 2,
}  # fmt: skip
_OUT_OF_TURNS: Final[dict[str, Any]] = {
    "subtype": "error_max_turns", "terminal_reason": "max_turns", "is_error": True, "num_turns": 1,
}  # fmt: skip


def _ended(result: ResultMessage, how: Mapping[str, Any]) -> ResultMessage:
    """A closing message of its own: what `result` counted is counted already."""
    kept = ("type", "session_id", "total_cost_usd", "modelUsage")
    said = {key: value for key, value in to_dict(result).items() if key in kept}
    made = from_dict({**said, "uuid": str(uuid.uuid4()), **how})
    assert isinstance(made, ResultMessage)
    return made
