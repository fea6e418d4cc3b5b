"""One turn: a prompt, the replies of the model, its tool calls, and the result.

Owns the loop, its end, and when rows of the transcript are written.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
from msgspec import Struct, field

from pilothouse.native import frames
from pilothouse.native.api import (
    ApiError,
    ConnectApi,
    PromptIds,
    ReplyRequest,
    StreamedReply,
    describe_failure,
    is_prompt_too_long,
)
from pilothouse.native.commands import compact, needs_compaction
from pilothouse.native.history import History
from pilothouse.native.prompts import (
    CONTINUE_REPLY,
    EMPTY_NUDGE,
    INTERRUPTED,
    INTERRUPTED_TOOLS,
    STRUCTURED_NUDGE,
    make_reminder,
)
from pilothouse.native.state import SessionState
from pilothouse.native.tool_calls import PermissionChecker, ToolCalls
from pilothouse.native.wire import HostDisconnectedError, JsonObject, Wire
from pilothouse.transports.concurrency import run_blocking

MAX_SCHEMA_FAILURES: Final = 5
"""Number of outputs that do not fit the schema after which the turn fails."""
MAX_CONTINUATIONS: Final = 3
"""How often a reply that reached its token limit is continued."""


class TurnPrompt(Struct):
    """A message of the user.

    Attributes:
        content: text or blocks.
        uuid: its uuid, if it has one.
        frame: the original frame.
    """

    content: str | list[JsonObject]
    uuid: str | None = None
    frame: JsonObject = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The text of the prompt."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(block["text"]) for block in self.content if block.get("type") == "text")


class TurnEnd(Struct):
    """The outcome of a turn: fields for its result."""

    fields: JsonObject
    is_error: bool = False


def make_success(text: str, stop_reason: str | None, **extra: Any) -> TurnEnd:
    """Make the normal outcome."""
    fields = {"subtype": "success", "is_error": False, "api_error_status": None, "terminal_reason": "completed"}
    return TurnEnd(fields | {"result": text, "stop_reason": stop_reason} | extra)


def make_failure(subtype: str, terminal: str, error: str, stop_reason: str | None = None) -> TurnEnd:
    """Make an outcome with `errors`."""
    fields = {"subtype": subtype, "is_error": True, "terminal_reason": terminal, "errors": [error]}
    return TurnEnd(fields | {"stop_reason": stop_reason}, is_error=True)


class EngineTurn:
    """Answers one prompt.

    Attributes:
        is_finished: whether its result was sent.
        is_error: `is_error` of the result.
    """

    def __init__(
        self,
        state: SessionState,
        connect: ConnectApi,
        permissions: PermissionChecker,
        writer: TranscriptWriter,
        prompt: TurnPrompt,
    ) -> None:
        self._state, self._connect, self._permissions, self._writer = state, connect, permissions, writer
        self._prompt = prompt
        self._prompt_ids = PromptIds((prompt.uuid,) if prompt.uuid else ())
        self._started_at = time.monotonic()
        self._request: ReplyRequest | None = None
        self._calls: ToolCalls | None = None
        self._is_recorded = False  # the prompt is part of the conversation
        self._turns = 1
        self._reply_count = 0
        self._first_reply_at: float | None = None  # when the first reply began
        self._schema_failures = 0
        self._continuations = 0
        self._nudged: set[str] = set()
        self._is_stop_hook_active = False
        self._denials: list[JsonObject] = []
        self._usage: JsonObject = {}
        self.is_finished = False
        self.is_error = False
        state.totals.start_turn()

    async def run(self) -> None:
        """Answer the prompt, and send the result."""
        if self._prompt.frame.get("shouldQuery") is False:
            self._state.history.add_prompt(self._prompt.content, self._state.permission_mode, self._prompt.uuid)
            self._turns = 0
            await self._finish(make_success("", None))
            return
        end = await self._start()
        while end is None:
            end = await self._run_round()
        await self._finish(end)

    # Start.

    async def _start(self) -> TurnEnd | None:
        state = self._state
        await state.servers.wait()
        try:
            about = state.make_hook_fields() | {"prompt": self._prompt.text}
            verdict = await state.hooks.run("UserPromptSubmit", about)
        except HostDisconnectedError:
            verdict = None
        names = {"user_message_uuids": list(self._prompt_ids.uuids)} if self._prompt_ids.uuids else {}
        await state.wire.send(frames.init(state) | names)
        if state.arguments.replay_user_messages:
            await state.wire.send(frames.user(self._prompt.content, isReplay=True, uuid=self._prompt.uuid))
        if verdict is not None and (verdict.is_blocking or verdict.stop_reason is not None):
            self._turns = 0
            why = verdict.reason or verdict.stop_reason or ""
            return make_success(f"UserPromptSubmit operation blocked by hook:\n{why}", None)
        state.history.add_prompt(self._prompt.content, state.permission_mode, self._prompt.uuid)
        self._is_recorded = True
        state.history.add_metadata("last-prompt", lastPrompt=self._prompt.text[:2000])
        if verdict is not None:
            self._add_reminders(verdict.contexts)
        await self._writer.flush()
        return None

    def _add_reminders(self, contexts: Sequence[str]) -> None:
        if contexts:
            self._state.history.add_user_message(
                [{"type": "text", "text": make_reminder(text)} for text in contexts], isMeta=True
            )

    # One reply, and its consequences.

    async def _run_round(self) -> TurnEnd | None:
        try:
            if self._usage and needs_compaction(self._state, self._usage):
                await self._compact()
            reply = await self._request_reply()
        except ApiError as error:
            return await self._on_api_error(error)
        self._record_reply(reply, self._request.frame_uuids if self._request is not None else ())
        await self._writer.flush()
        limit = self._state.arguments.max_budget_usd
        if limit is not None and self._state.totals.cost_usd > limit:
            text = f"Reached maximum budget (${limit:g})"
            return make_failure("error_max_budget_usd", "budget_exhausted", text, reply.stop_reason)
        return await (self._run_calls(reply) if reply.tool_calls else self._on_reply_without_calls(reply))

    async def _request_reply(self) -> StreamedReply:
        for again in (True, False):
            self._request = ReplyRequest(self._state, self._connect, self._prompt_ids)
            try:
                reply = await self._request.run(self._state.make_request)
            except ApiError as error:
                if again and is_prompt_too_long(error) and await self._compact():
                    continue
                raise
            self._reply_count += 1
            self._first_reply_at = self._first_reply_at or self._request.first_event_at
            self._usage = reply.usage
            return reply
        raise AssertionError("the second round returns or raises")

    async def _compact(self) -> bool:
        self._usage = {}
        return await compact(self._state, self._connect, "auto", request=self._prompt.text) >= 0

    def _record_reply(
        self, reply: StreamedReply, names: Sequence[str], blocks: Sequence[JsonObject] | None = None
    ) -> None:
        kept = reply.blocks if blocks is None else blocks
        message = reply.header | {"stop_reason": reply.stop_reason, "stop_sequence": reply.stop_sequence}
        request_id = self._request.request_id if self._request is not None else None
        about = {"requestId": request_id} if request_id else {}
        self._state.history.add_reply(kept, message | {"usage": reply.usage}, names, **about)

    async def _on_api_error(self, error: ApiError) -> TurnEnd:
        words = describe_failure(error)
        about: JsonObject = {
            "error": words.category,
            "is_api_error_message": True,
            **words.fields,
            **self._prompt_ids.take_fields("assistant"),
        }
        if error.request_id:
            about["request_id"] = error.request_id
        frame = frames.synthetic(words.text, **about)
        name = await self._state.wire.send(frame)
        self._state.history.add_failure(frame["message"], name, error=words.category)
        await self._run_stop_failure_hooks(words.category, words.text)
        fields = {"is_error": True, "terminal_reason": words.terminal_reason, **words.fields}
        end = make_success(words.text, "stop_sequence", **fields)
        end.is_error = True
        return end

    async def _run_stop_failure_hooks(self, error: str, details: str) -> None:
        about = {"error": error, "error_details": details}
        try:
            await self._state.hooks.run("StopFailure", self._state.make_hook_fields() | about, subject=error)
        except HostDisconnectedError:
            return  # the hook cannot change the failure anyway

    async def _on_reply_without_calls(self, reply: StreamedReply) -> TurnEnd | None:
        """Handle a reply without calls: ends the turn, unless a stop reason, a nudge or a hook continues it."""
        if reply.stop_reason == "pause_turn":
            return None
        if reply.stop_reason == "refusal":
            return self._on_refusal(reply)
        if reply.stop_reason == "max_tokens":
            return self._continue_reply(reply)
        if self._state.schema is not None and self._nudge("schema", STRUCTURED_NUDGE):
            return None
        if not reply.text.strip() and self._nudge("empty", EMPTY_NUDGE):
            return None
        return await self._run_stop_hooks(reply)

    def _nudge(self, kind: str, text: str) -> bool:
        if kind in self._nudged:
            return False
        self._nudged.add(kind)
        self._state.history.add_user_message(make_reminder(text), isMeta=True)
        return True

    def _continue_reply(self, reply: StreamedReply) -> TurnEnd | None:
        if self._continuations < MAX_CONTINUATIONS:
            self._continuations += 1
            self._state.history.add_user_message(CONTINUE_REPLY, isMeta=True)
            return None
        text = f"API Error: the reply is longer than {self._state.max_output} tokens"
        fields = {"is_error": True, "terminal_reason": "api_error", "api_error": "max_output_tokens"}
        end = make_success(text, reply.stop_reason, **fields)
        end.is_error = True
        return end

    def _on_refusal(self, reply: StreamedReply) -> TurnEnd:
        text = reply.text or "The model refused to answer"
        end = make_success(text, "refusal", is_error=True, terminal_reason="model_error")
        end.is_error = True
        return end

    async def _run_stop_hooks(self, reply: StreamedReply) -> TurnEnd | None:
        about = {"stop_hook_active": self._is_stop_hook_active, "last_assistant_message": reply.text}
        try:
            verdict = await self._state.hooks.run("Stop", self._state.make_hook_fields() | about)
        except HostDisconnectedError:
            return make_success(reply.text, reply.stop_reason)
        if verdict.stop_reason is not None:
            return make_success(reply.text, reply.stop_reason, terminal_reason="stop_hook_prevented")
        if verdict.is_blocking or verdict.contexts:
            self._is_stop_hook_active = True
            feedback = "\n".join([verdict.reason, *verdict.contexts]).strip()
            self._state.history.add_user_message(f"Stop hook feedback:\n{feedback}", isMeta=True)
            return None
        return make_success(reply.text, reply.stop_reason)

    async def _run_calls(self, reply: StreamedReply) -> TurnEnd | None:
        """Handle a reply with calls."""
        calls = self._calls = ToolCalls(self._state, self._permissions, reply.tool_calls)
        await calls.run()
        self._denials += calls.denials
        if calls.ends_turn:
            return await self._finish_denied(calls, reply)
        self._record_results(calls)
        self._turns += 1
        await self._writer.flush()
        return self._find_end(calls, reply)

    def _record_results(self, calls: ToolCalls) -> None:
        self._calls = None
        for answered in calls.list_answers():
            about: JsonObject = {"toolUseResult": answered.result}
            self._state.history.add_user_message([answered.block], **about)
        self._add_reminders(calls.contexts)

    def _find_end(self, calls: ToolCalls, reply: StreamedReply) -> TurnEnd | None:
        if calls.structured_output is not None:
            text = frames.encode_compact_json(calls.structured_output)
            return make_success(text, reply.stop_reason, structured_output=calls.structured_output)
        self._schema_failures += calls.schema_failures
        if self._schema_failures >= MAX_SCHEMA_FAILURES:
            text = f"Failed to provide valid structured output after {self._schema_failures} attempts"
            terminal = "structured_output_retry_exhausted"
            return make_failure("error_max_structured_output_retries", terminal, text, reply.stop_reason)
        if calls.deferred_call is not None:
            about = {"terminal_reason": "tool_deferred", "deferred_tool_use": calls.deferred_call}
            return make_success(reply.text, "tool_deferred", **about)
        if calls.stop_reason is not None:
            return make_success(reply.text, reply.stop_reason, terminal_reason="hook_stopped")
        limit = self._state.arguments.max_turns
        if limit is not None and self._reply_count >= limit:
            text = f"Reached maximum number of turns ({limit})"
            return make_failure("error_max_turns", "max_turns", text, reply.stop_reason)
        return None

    # The end.

    @property
    def usage(self) -> JsonObject:
        """Usage of the last reply."""
        return self._usage

    async def finish_command(self, end: TurnEnd) -> None:
        """End a turn whose prompt was a command."""
        self._turns = 0
        await self._finish(end)

    async def _finish(self, end: TurnEnd) -> None:
        await self._writer.flush()
        self._state.history.add_metadata(
            "cost-state", **self._state.totals.to_row(time.monotonic() - self._state.started_at)
        )
        self.is_finished, self.is_error = True, end.is_error
        about = (
            {"num_turns": self._turns, "permission_denials": self._denials}
            | self._prompt_ids.make_result_fields()
            | end.fields
        )
        if self._first_reply_at is not None:
            about["ttft_ms"] = round((self._first_reply_at - self._started_at) * 1000)
        await self._state.wire.send(frames.result(self._state, self._started_at, **about))
        await self._writer.flush()

    async def _finish_denied(self, calls: ToolCalls, reply: StreamedReply) -> TurnEnd:
        await calls.answer_unfinished()
        self._record_results(calls)
        self._turns += 2
        await self._add_user_note(INTERRUPTED_TOOLS)
        return make_failure(
            "error_during_execution", "aborted_tools", "interrupted by a denied permission", reply.stop_reason
        )

    async def _add_user_note(self, text: str) -> None:
        self._state.history.add_user_message(text)
        await self._state.wire.send(frames.user([{"type": "text", "text": text}]))

    async def finish_interrupted(self) -> None:
        """End a cancelled turn: send its remaining frames, and the result."""
        if self.is_finished:
            return
        if not self._is_recorded:
            self._state.history.add_prompt(self._prompt.content, self._state.permission_mode, self._prompt.uuid)
        if self._calls is not None:
            calls = self._calls
            self._denials += [denial for denial in calls.denials if denial not in self._denials]
            await calls.answer_unfinished()
            self._record_results(calls)
            self._turns += 2
            await self._add_user_note(INTERRUPTED_TOOLS)
            terminal, stop_reason = "aborted_tools", "tool_use"
        else:
            self._turns += 1
            await self._record_partial_reply()
            terminal, stop_reason = "aborted_streaming", None
        await self._finish(make_failure("error_during_execution", terminal, "interrupted", stop_reason))

    async def _record_partial_reply(self) -> None:
        """Record the received part of a reply: whole blocks of text, and the beginning of one."""
        asking = self._request
        if asking is None or not asking.reply.has_started or asking.reply.is_complete:
            await self._add_user_note(INTERRUPTED)
            return
        reply = asking.reply
        kept = [(b, n) for b, n in zip(reply.blocks, asking.frame_uuids, strict=False) if b.get("type") == "text"]
        partial = reply.partial_block
        if partial is not None:
            frame = frames.assistant(reply.header, [partial], aborted=True, **self._prompt_ids.take_fields("assistant"))
            kept.append((partial, await self._state.wire.send(frame)))
        if kept:
            self._record_reply(reply, [name for _, name in kept], [block for block, _ in kept])
        await self._add_user_note(INTERRUPTED)
        await asking.close_stream(keep=len(reply.blocks) + (partial is not None))


class TranscriptWriter:
    """Writes the rows of a history.

    Args:
        history: the history of the session.
        wire: the wire of the session.
        is_mirrored: also send every row to the host (`--session-mirror`).
    """

    def __init__(self, history: History, wire: Wire, *, is_mirrored: bool) -> None:
        self._history, self._wire, self._is_mirrored = history, wire, is_mirrored
        self._lock = anyio.Lock()
        self._has_failed = False

    async def flush(self) -> None:
        """Write the pending rows. The write completes even if this task is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                rows = self._history.take_pending()
                if not rows:
                    return
                path = str(self._history.path)
                try:
                    await run_blocking(self._history.write, rows)
                except OSError as error:
                    await self._report_failure(error)
                if self._is_mirrored:
                    await self._wire.send({"type": "transcript_mirror", "filePath": path, "entries": rows})

    async def _report_failure(self, error: OSError) -> None:
        self._wire.stderr(f"the transcript cannot be written: {error}")
        if self._has_failed:
            return
        self._has_failed = True
        code = errno.errorcode.get(error.errno or 0, "EIO")
        about: dict[str, Any] = {"error_code": code, "lost": ["transcript"]}
        ids = [self._history.session_id]
        await self._wire.send(frames.system("session_writes_lost", transcript_session_ids=ids, **about))
