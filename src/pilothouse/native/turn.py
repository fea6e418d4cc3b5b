"""One turn: a prompt, the replies of the model, its tool calls, and the result.

Owns the loop and how it can end. What a reply or a call is, others know.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field

from pilothouse.native import frames
from pilothouse.native.api import ApiError
from pilothouse.native.asking import Asking, Connect, Marks
from pilothouse.native.calling import Calls
from pilothouse.native.compacting import compact, is_due
from pilothouse.native.failures import is_too_long, told
from pilothouse.native.permitting import Permitting
from pilothouse.native.prompts import (
    EMPTY_NUDGE,
    GO_ON,
    INTERRUPTED,
    INTERRUPTED_TOOLS,
    STRUCTURED_NUDGE,
    reminder,
)
from pilothouse.native.reply import Reply
from pilothouse.native.saving import Saving
from pilothouse.native.shapes import JSON
from pilothouse.native.state import State
from pilothouse.native.wire import HostGoneError

MAX_MISFITS: Final = 5
"""Outputs that do not fit the schema, before the turn fails."""
MAX_CONTINUED: Final = 3
"""How often a reply that reached the limit of its length is continued."""


class Prompt(Struct):
    """A message of the user.

    Attributes:
        content: text or blocks.
        name: its uuid, if it has one.
        frame: as it came.
    """

    content: str | list[JSON]
    name: str | None = None
    frame: JSON = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """Its text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(block["text"]) for block in self.content if block.get("type") == "text")


class End(Struct):
    """How a turn ended: what its result says."""

    about: JSON
    is_error: bool = False


def success(text: str, stop_reason: str | None, **about: Any) -> End:
    """The usual end."""
    fields = {"subtype": "success", "is_error": False, "api_error_status": None, "terminal_reason": "completed"}
    return End(fields | {"result": text, "stop_reason": stop_reason} | about)


def failure(subtype: str, terminal: str, error: str, stop_reason: str | None = None) -> End:
    """An end with `errors`."""
    fields = {"subtype": subtype, "is_error": True, "terminal_reason": terminal, "errors": [error]}
    return End(fields | {"stop_reason": stop_reason}, is_error=True)


class Turn:
    """Answers one prompt.

    Attributes:
        is_over: its result was said.
        is_error: that of the result.
    """

    def __init__(self, state: State, connect: Connect, permitting: Permitting, saving: Saving, prompt: Prompt) -> None:
        self._state, self._connect, self._permitting, self._saving = state, connect, permitting, saving
        self._prompt = prompt
        self._marks = Marks((prompt.name,) if prompt.name else ())
        self._began = time.monotonic()
        self._asking: Asking | None = None
        self._calls: Calls | None = None
        self._said = False  # the prompt is part of the conversation
        self._turns = 1
        self._replies = 0
        self._first: float | None = None  # when the first reply began
        self._misfits = 0
        self._continued = 0
        self._nudged: set[str] = set()
        self._stop_hook = False
        self._denials: list[JSON] = []
        self._usage: JSON = {}
        self.is_over = False
        self.is_error = False
        state.spending.begin_turn()

    async def run(self) -> None:
        """Answer it, and say the result."""
        if self._prompt.frame.get("shouldQuery") is False:
            self._state.history.prompt(self._prompt.content, self._state.mode, self._prompt.name)
            self._turns = 0
            await self._finish(success("", None))
            return
        end = await self._begin()
        while end is None:
            end = await self._round()
        await self._finish(end)

    # The beginning.

    async def _begin(self) -> End | None:
        state = self._state
        await state.servers.wait()
        try:
            about = state.about() | {"prompt": self._prompt.text}
            verdict = await state.hooks.fire("UserPromptSubmit", about)
        except HostGoneError:
            verdict = None
        names = {"user_message_uuids": list(self._marks.names)} if self._marks.names else {}
        await state.wire.say(frames.init(state) | names)
        if state.launch.replay:
            await state.wire.say(frames.user(self._prompt.content, isReplay=True, uuid=self._prompt.name))
        if verdict is not None and (verdict.blocks or verdict.stop_reason is not None):
            self._turns = 0
            why = verdict.reason or verdict.stop_reason or ""
            return success(f"UserPromptSubmit operation blocked by hook:\n{why}", None)
        state.history.prompt(self._prompt.content, state.mode, self._prompt.name)
        self._said = True
        state.history.note("last-prompt", lastPrompt=self._prompt.text[:2000])
        if verdict is not None:
            self._remind(verdict.contexts)
        await self._saving.flush()
        return None

    def _remind(self, contexts: Sequence[str]) -> None:
        if contexts:
            self._state.history.user([{"type": "text", "text": reminder(text)} for text in contexts], isMeta=True)

    # One reply, and what follows from it.

    async def _round(self) -> End | None:
        try:
            if self._usage and is_due(self._state, self._usage):
                await self._compact()
            reply = await self._ask()
        except ApiError as error:
            return await self._failed(error)
        self._keep(reply, self._asking.names if self._asking is not None else ())
        await self._saving.flush()
        limit = self._state.launch.max_budget_usd
        if limit is not None and self._state.spending.usd > limit:
            text = f"Reached maximum budget (${limit:g})"
            return failure("error_max_budget_usd", "budget_exhausted", text, reply.stop_reason)
        return await (self._act(reply) if reply.calls else self._rest(reply))

    async def _ask(self) -> Reply:
        for again in (True, False):
            self._asking = Asking(self._state, self._connect, self._marks)
            try:
                reply = await self._asking.run(self._state.request)
            except ApiError as error:
                if again and is_too_long(error) and await self._compact():
                    continue
                raise
            self._replies += 1
            self._first = self._first or self._asking.begun
            self._usage = reply.usage
            return reply
        raise AssertionError("the second round returns or raises")

    async def _compact(self) -> bool:
        self._usage = {}
        return await compact(self._state, self._connect, "auto", request=self._prompt.text) >= 0

    def _keep(self, reply: Reply, names: Sequence[str], blocks: Sequence[JSON] | None = None) -> None:
        kept = reply.blocks if blocks is None else blocks
        message = reply.head | {"stop_reason": reply.stop_reason, "stop_sequence": reply.stop_sequence}
        request_id = self._asking.request_id if self._asking is not None else None
        about = {"requestId": request_id} if request_id else {}
        self._state.history.assistant(kept, message | {"usage": reply.usage}, names, **about)

    async def _failed(self, error: ApiError) -> End:
        words = told(error)
        about: JSON = {
            "error": words.error,
            "is_api_error_message": True,
            **words.fields,
            **self._marks.first("assistant"),
        }
        if error.request_id:
            about["request_id"] = error.request_id
        frame = frames.synthetic(words.text, **about)
        name = await self._state.wire.say(frame)
        self._state.history.failure(frame["message"], name, error=words.error)
        await self._stop_failed(words.error, words.text)
        fields = {"is_error": True, "terminal_reason": words.terminal, **words.fields}
        end = success(words.text, "stop_sequence", **fields)
        end.is_error = True
        return end

    async def _stop_failed(self, error: str, details: str) -> None:
        about = {"error": error, "error_details": details}
        try:
            await self._state.hooks.fire("StopFailure", self._state.about() | about, subject=error)
        except HostGoneError:
            return  # it can do nothing about the failure anyway

    async def _rest(self, reply: Reply) -> End | None:
        """A reply without calls: the end, unless something speaks against it."""
        if reply.stop_reason == "pause_turn":
            return None
        if reply.stop_reason == "refusal":
            return self._refused(reply)
        if reply.stop_reason == "max_tokens":
            return self._go_on(reply)
        if self._state.schema is not None and self._nudge("schema", STRUCTURED_NUDGE):
            return None
        if not reply.text.strip() and self._nudge("empty", EMPTY_NUDGE):
            return None
        return await self._stop_hooks(reply)

    def _nudge(self, kind: str, text: str) -> bool:
        if kind in self._nudged:
            return False
        self._nudged.add(kind)
        self._state.history.user(reminder(text), isMeta=True)
        return True

    def _go_on(self, reply: Reply) -> End | None:
        if self._continued < MAX_CONTINUED:
            self._continued += 1
            self._state.history.user(GO_ON, isMeta=True)
            return None
        text = f"API Error: the reply is longer than {self._state.max_output} tokens"
        fields = {"is_error": True, "terminal_reason": "api_error", "api_error": "max_output_tokens"}
        end = success(text, reply.stop_reason, **fields)
        end.is_error = True
        return end

    def _refused(self, reply: Reply) -> End:
        text = reply.text or "The model refused to answer"
        end = success(text, "refusal", is_error=True, terminal_reason="model_error")
        end.is_error = True
        return end

    async def _stop_hooks(self, reply: Reply) -> End | None:
        about = {"stop_hook_active": self._stop_hook, "last_assistant_message": reply.text}
        try:
            verdict = await self._state.hooks.fire("Stop", self._state.about() | about)
        except HostGoneError:
            return success(reply.text, reply.stop_reason)
        if verdict.stop_reason is not None:
            return success(reply.text, reply.stop_reason, terminal_reason="stop_hook_prevented")
        if verdict.blocks or verdict.contexts:
            self._stop_hook = True
            feedback = "\n".join([verdict.reason, *verdict.contexts]).strip()
            self._state.history.user(f"Stop hook feedback:\n{feedback}", isMeta=True)
            return None
        return success(reply.text, reply.stop_reason)

    async def _act(self, reply: Reply) -> End | None:
        """A reply with calls."""
        calls = self._calls = Calls(self._state, self._permitting, reply.calls)
        await calls.run()
        self._denials += calls.denials
        if calls.interrupts:
            return await self._interrupted_by_denial(calls, reply)
        self._keep_results(calls)
        self._turns += 1
        await self._saving.flush()
        return self._after_calls(calls, reply)

    def _keep_results(self, calls: Calls) -> None:
        self._calls = None
        for answered in calls.rows():
            about: JSON = {"toolUseResult": answered.result}
            self._state.history.user([answered.block], **about)
        self._remind(calls.contexts)

    def _after_calls(self, calls: Calls, reply: Reply) -> End | None:
        if calls.structured is not None:
            text = frames.compact_json(calls.structured)
            return success(text, reply.stop_reason, structured_output=calls.structured)
        self._misfits += calls.misfits
        if self._misfits >= MAX_MISFITS:
            text = f"Failed to provide valid structured output after {self._misfits} attempts"
            terminal = "structured_output_retry_exhausted"
            return failure("error_max_structured_output_retries", terminal, text, reply.stop_reason)
        if calls.deferred is not None:
            about = {"terminal_reason": "tool_deferred", "deferred_tool_use": calls.deferred}
            return success(reply.text, "tool_deferred", **about)
        if calls.stop_reason is not None:
            return success(reply.text, reply.stop_reason, terminal_reason="hook_stopped")
        limit = self._state.launch.max_turns
        if limit is not None and self._replies >= limit:
            text = f"Reached maximum number of turns ({limit})"
            return failure("error_max_turns", "max_turns", text, reply.stop_reason)
        return None

    # The end.

    @property
    def usage(self) -> JSON:
        """Usage of the last reply."""
        return self._usage

    async def end_command(self, end: End) -> None:
        """The prompt was a command, and was carried out."""
        self._turns = 0
        await self._finish(end)

    async def _finish(self, end: End) -> None:
        await self._saving.flush()
        self._state.history.note("cost-state", **self._state.spending.row(time.monotonic() - self._state.started))
        self.is_over, self.is_error = True, end.is_error
        about = {"num_turns": self._turns, "permission_denials": self._denials} | self._marks.all() | end.about
        if self._first is not None:
            about["ttft_ms"] = round((self._first - self._began) * 1000)
        await self._state.wire.say(frames.result(self._state, self._began, **about))
        await self._saving.flush()

    async def _interrupted_by_denial(self, calls: Calls, reply: Reply) -> End:
        await calls.give_up()
        self._keep_results(calls)
        self._turns += 2
        await self._note(INTERRUPTED_TOOLS)
        return failure(
            "error_during_execution", "aborted_tools", "interrupted by a denied permission", reply.stop_reason
        )

    async def _note(self, text: str) -> None:
        self._state.history.user(text)
        await self._state.wire.say(frames.user([{"type": "text", "text": text}]))

    async def interrupted(self) -> None:
        """It was cancelled in the middle: say what is left of it, and the result."""
        if self.is_over:
            return
        if not self._said:
            self._state.history.prompt(self._prompt.content, self._state.mode, self._prompt.name)
        if self._calls is not None:
            calls = self._calls
            self._denials += [denial for denial in calls.denials if denial not in self._denials]
            await calls.give_up()
            self._keep_results(calls)
            self._turns += 2
            await self._note(INTERRUPTED_TOOLS)
            terminal, stop_reason = "aborted_tools", "tool_use"
        else:
            self._turns += 1
            await self._keep_partial()
            terminal, stop_reason = "aborted_streaming", None
        await self._finish(failure("error_during_execution", terminal, "interrupted", stop_reason))

    async def _keep_partial(self) -> None:
        """What had come of a reply: whole blocks of text, and the beginning of one."""
        asking = self._asking
        if asking is None or not asking.reply.has_begun or asking.reply.is_complete:
            await self._note(INTERRUPTED)
            return
        reply = asking.reply
        kept = [(b, n) for b, n in zip(reply.blocks, asking.names, strict=False) if b.get("type") == "text"]
        partial = reply.partial
        if partial is not None:
            frame = frames.assistant(reply.head, [partial], aborted=True, **self._marks.first("assistant"))
            kept.append((partial, await self._state.wire.say(frame)))
        if kept:
            self._keep(reply, [name for _, name in kept], [block for block, _ in kept])
        await self._note(INTERRUPTED)
        await asking.close_stream(keep=len(reply.blocks) + (partial is not None))
