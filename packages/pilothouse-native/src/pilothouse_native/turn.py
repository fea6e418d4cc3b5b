"""One turn: a prompt, the replies of the model, its tool calls, and the result; the commands `/clear` and `/compact`.

Owns the loop and its end, retries and the fallback model, the frames of a reply, compaction, and when rows of the
transcript are written. Compaction runs on command, and before the context window is full. Text that is not a command
goes to the model unchanged.
"""

from __future__ import annotations

import errno
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import anyio
from msgspec import Struct, field

from pilothouse.support import encode_json, run_blocking
from pilothouse_native import frames, prompts
from pilothouse_native.api import ApiError, InvalidStreamError, StreamedReply
from pilothouse_native.history import History
from pilothouse_native.models import context_tokens, get_model, resolve_model
from pilothouse_native.state import SessionState
from pilothouse_native.tool_calls import PermissionChecker, ToolCalls
from pilothouse_native.wire import JsonObject, Wire, join_text

MAX_SCHEMA_FAILURES: Final = 5
"""Number of outputs that do not fit the schema after which the turn fails."""
MAX_CONTINUATIONS: Final = 3
"""How often a reply that reached its token limit is continued."""


FIRST_DELAY: Final = 0.5
"""Seconds before the first retry; doubled for each further retry, up to `MAX_DELAY`."""
MAX_DELAY: Final = 32.0
JITTER: Final = 0.25
MAX_RETRY_AFTER: Final = 60.0
"""Upper limit for the seconds of a `retry-after` header."""


class PromptIds:
    """The uuid of the prompt that a turn answers, if it has one; the first frame of each kind carries it."""

    def __init__(self, prompt_uuid: str | None = None) -> None:
        self.result_fields: JsonObject = {}
        if prompt_uuid:
            self.result_fields = {"user_message_uuid": prompt_uuid, "user_message_uuids": [prompt_uuid]}
        self._sent_kinds: set[str] = set()

    def take_fields(self, kind: str) -> JsonObject:
        """Return the fields for the first frame of a kind; empty for later ones."""
        if kind in self._sent_kinds:
            return {}
        self._sent_kinds.add(kind)
        return self.result_fields.copy()

    def take_list(self, kind: str) -> JsonObject:
        """Return the same, as the list alone."""
        fields = self.take_fields(kind)
        return {"user_message_uuids": fields["user_message_uuids"]} if fields else {}


class ReplyRequest:
    """Requests one reply. If it is silent, it is no part of the conversation, and sends no frames."""

    def __init__(self, state: SessionState, prompt_ids: PromptIds, *, is_silent: bool = False) -> None:
        self._state, self._prompt_ids, self._is_silent = state, prompt_ids, is_silent
        self.reply = StreamedReply()  # as far as received
        self.frame_uuids: list[str] = []  # of the frames of its blocks
        self.request_id: str | None = None  # of the API
        self.first_event_at: float | None = None  # on the clock of `time.monotonic`
        self._superseded: list[str] = []
        self._fallback_models = [resolve_model(name, state.env) for name in state.arguments.fallback_model]
        self._is_stream_open = False

    async def run(self, make_request: Callable[[], JsonObject]) -> StreamedReply:
        """Send the request, made anew for every attempt, and retry until there is a reply. Raises ApiError at last."""
        attempt, streams = 0, True
        while True:
            self.reply, self.frame_uuids = StreamedReply(), []
            began = time.monotonic()
            try:
                reply = await (self._stream(make_request()) if streams else self._create(make_request()))
                self._state.totals.add(self._state.model, reply.usage, time.monotonic() - began)
                return reply
            except ApiError as error:
                if self.reply.header:  # none of a broken stream counts, and its frames are superseded
                    self._superseded += self.frame_uuids
                    await self.close_stream(keep=0)
                    if not self._state.env.get("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK"):
                        streams = False
                        continue
                    raise
                if error.is_retryable and attempt < self._state.max_retries:
                    attempt += 1
                    await self._wait_before_retry(error, attempt)
                elif error.status in {404, 429, 529} and await self._switch_model():
                    attempt = 0
                else:
                    raise

    async def _stream(self, request: JsonObject) -> StreamedReply:
        state, began = self._state, time.monotonic()
        await state.api.wait()
        if state.arguments.include_partial_messages and not self._is_silent:
            status = frames.system("status", status="requesting")
            await state.wire.send(status | self._prompt_ids.take_list("status"))
        async with state.api.stream(request, state.betas) as events:
            self.request_id = events.response.headers.get("request-id")
            # Not `async for`, which makes a generator that has to be closed as well.
            while (event := await anext(events, None)) is not None:
                await self._on_event(event.to_dict(mode="json"), began)
        if not self.reply.is_complete:
            raise ApiError("the stream ended before the message did")
        return self.reply

    async def _on_event(self, event: JsonObject, began: float) -> None:
        try:
            block = self.reply.feed(event)
        except (InvalidStreamError, KeyError, TypeError) as error:
            raise ApiError(f"the stream is broken: {error!r}") from error
        kind = event.get("type")
        if kind == "content_block_stop" and block is not None:
            await self._send_block(block)
        about: JsonObject = {}
        if kind == "message_start":
            self._is_stream_open = True
            self.first_event_at = self.first_event_at or time.monotonic()
            about = {"ttft_ms": round((time.monotonic() - began) * 1000)} | self._prompt_ids.take_fields("event")
        await self._send_event(event, **about)
        if kind == "message_stop":
            self._is_stream_open = False

    async def _send_event(self, event: JsonObject, **fields: Any) -> None:
        if self._state.arguments.include_partial_messages and not self._is_silent:
            await self._state.wire.send(frames.stream_event(event, self.reply.id, **fields))

    async def _create(self, request: JsonObject) -> StreamedReply:
        message, self.request_id = await self._state.api.create(request, self._state.betas)
        self.reply = StreamedReply.from_message(message)
        for block in self.reply.blocks:
            await self._send_block(block)
        return self.reply

    async def _send_block(self, block: JsonObject) -> None:
        """Send the `assistant` frame of a block; it comes before the end of the block in the stream."""
        if self._is_silent:
            return
        name = str(uuid.uuid4())
        if block.get("type") == "text" and self._state.hooks.has_hooks("MessageDisplay"):
            shown = {"message_id": name, "index": 0, "final": True, "delta": block["text"]}
            shown["turn_id"] = self._state.history.prompt_id
            await self._state.run_hooks("MessageDisplay", shown, key=f"{name}-0", has_mode=False)
        about: JsonObject = self._prompt_ids.take_fields("assistant")
        if self.request_id:
            about["request_id"] = self.request_id
        if self._superseded and not self.frame_uuids:
            about["supersedes"] = self._superseded
        self.frame_uuids.append(name)
        await self._state.wire.send(frames.assistant(self.reply.header, [block], uuid=name, **about))

    async def close_stream(self, *, keep: int) -> None:
        """Send the end of a stream that has none, so that its consumers know; the first `keep` blocks count."""
        if not self._is_stream_open:
            return
        self._is_stream_open = False
        delta = {"stop_reason": None, "stop_sequence": None}
        await self._send_event({"type": "message_delta", "delta": delta, "usage": self.reply.usage})
        left = {"api_message_id": self.reply.id, "from_block_index": keep}
        await self._send_event({"type": "message_stop"}, abandoned_blocks=left)

    async def _wait_before_retry(self, error: ApiError, attempt: int) -> None:
        delay = min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY) * (1 + random.random() * JITTER)  # noqa: S311
        delay = max(delay, min(error.retry_after or 0.0, MAX_RETRY_AFTER))
        about = {"attempt": attempt, "max_retries": self._state.max_retries, "retry_delay_ms": round(delay * 1000)}
        about |= {"error_status": error.status, "error": error.retry_category}
        await self._state.wire.send(frames.system("api_retry", **about))
        await anyio.sleep(delay)

    async def _switch_model(self) -> bool:
        """Switch to the next fallback model; returns False if there is none."""
        while self._fallback_models:
            other = self._fallback_models.pop(0)
            if other != self._state.model:
                before, self._state.model = self._state.model, other
                text = f"Switched to {other}, because {before} is not available"
                fields = {"trigger": "overloaded", "original_model": before, "fallback_model": other, "content": text}
                await self._state.wire.send(frames.system("model_fallback", **fields))
                return True
        return False


class TurnPrompt(Struct):
    """A message of the user, and its original frame."""

    content: str | list[JsonObject]
    uuid: str | None = None
    frame: JsonObject = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return join_text(self.content)


def make_success(text: str, stop_reason: str | None, **extra: Any) -> JsonObject:
    """Make the fields of a result with text; with `is_error=True` among `extra` it is a failure."""
    fields = {"subtype": "success", "is_error": False, "api_error_status": None, "terminal_reason": "completed"}
    return fields | {"result": text, "stop_reason": stop_reason} | extra


def make_failure(subtype: str, terminal: str, error: str, stop_reason: str | None = None) -> JsonObject:
    """Make the fields of a result with `errors`."""
    fields = {"subtype": subtype, "is_error": True, "terminal_reason": terminal, "errors": [error]}
    return fields | {"stop_reason": stop_reason}


class EngineTurn:
    """Answers one prompt."""

    def __init__(
        self, state: SessionState, permissions: PermissionChecker, writer: TranscriptWriter, prompt: TurnPrompt
    ) -> None:
        self._state, self._permissions, self._writer = state, permissions, writer
        self._prompt = prompt
        self._prompt_ids = PromptIds(prompt.uuid)
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
        self.usage: JsonObject = {}  # of the last reply
        self.is_finished = False  # the result was sent
        self.is_error = False
        state.totals.start_turn()

    async def run(self) -> None:
        """Answer the prompt, and send the result."""
        if self._prompt.frame.get("shouldQuery") is False:
            self._state.history.add_prompt(self._prompt.content, self._state.permission_mode, self._prompt.uuid)
            await self.finish_without_model(make_success("", None))
            return
        end = await self._start()
        while end is None:
            end = await self._run_round()
        await self._finish(end)

    # Start.

    async def _start(self) -> JsonObject | None:
        state = self._state
        await state.servers.wait()
        hook_outcome = await state.run_hooks("UserPromptSubmit", {"prompt": self._prompt.text})
        await state.wire.send(frames.init(state) | self._prompt_ids.take_list("init"))
        if state.arguments.replay_user_messages:
            await state.wire.send(frames.user(self._prompt.content, isReplay=True, uuid=self._prompt.uuid))
        if hook_outcome.decision == "deny" or hook_outcome.stop_reason is not None:
            self._turns = 0
            why = hook_outcome.reason or hook_outcome.stop_reason or ""
            return make_success(f"UserPromptSubmit operation blocked by hook:\n{why}", None)
        state.history.add_prompt(self._prompt.content, state.permission_mode, self._prompt.uuid)
        self._is_recorded = True
        state.history.add_metadata("last-prompt", lastPrompt=self._prompt.text[:2000])
        self._add_reminders(hook_outcome.contexts)
        await self._writer.flush()
        return None

    def _add_reminders(self, contexts: Sequence[str]) -> None:
        if contexts:
            self._state.history.add_user_message(
                [{"type": "text", "text": prompts.make_reminder(text)} for text in contexts], isMeta=True
            )

    # One reply, and its consequences.

    async def _run_round(self) -> JsonObject | None:
        try:
            if self.usage and needs_compaction(self._state, self.usage):
                await self._compact()
            reply = await self._request_reply()
        except ApiError as error:
            return await self._on_api_error(error)
        self._record_reply(reply, self._request.frame_uuids if self._request is not None else (), reply.blocks)
        await self._writer.flush()
        limit = self._state.arguments.max_budget_usd
        if limit is not None and self._state.totals.cost_usd > limit:
            text = f"Reached maximum budget (${limit:g})"
            return make_failure("error_max_budget_usd", "budget_exhausted", text, reply.stop_reason)
        return await (self._run_calls(reply) if reply.tool_calls else self._on_reply_without_calls(reply))

    async def _request_reply(self) -> StreamedReply:
        for again in (True, False):
            self._request = ReplyRequest(self._state, self._prompt_ids)
            try:
                reply = await self._request.run(self._state.make_request)
            except ApiError as error:
                if again and error.is_prompt_too_long and await self._compact():
                    continue
                raise
            self._reply_count += 1
            self._first_reply_at = self._first_reply_at or self._request.first_event_at
            self.usage = reply.usage
            return reply
        raise AssertionError("the second round returns or raises")

    async def _compact(self) -> bool:
        self.usage = {}
        return await compact(self._state, "auto", request=self._prompt.text)

    def _record_reply(self, reply: StreamedReply, names: Sequence[str], blocks: Sequence[JsonObject]) -> None:
        message = reply.header | {"stop_reason": reply.stop_reason, "stop_sequence": reply.stop_sequence}
        request_id = self._request.request_id if self._request is not None else None
        about = {"requestId": request_id} if request_id else {}
        self._state.history.add_reply(blocks, message | {"usage": reply.usage}, names, **about)

    async def _on_api_error(self, error: ApiError) -> JsonObject:
        about: JsonObject = {"error": error.category, "is_api_error_message": True}
        about |= error.fields | self._prompt_ids.take_fields("assistant")
        if error.request_id:
            about["request_id"] = error.request_id
        frame = frames.synthetic(error.text, **about)
        name = await self._state.wire.send(frame)
        self._state.history.add_failure(frame["message"], name, error=error.category)
        about = {"error": error.category, "error_details": error.text}
        await self._state.run_hooks("StopFailure", about, subject=error.category)
        fields = {"is_error": True, "terminal_reason": error.terminal_reason, **error.fields}
        return make_success(error.text, "stop_sequence", **fields)

    async def _on_reply_without_calls(self, reply: StreamedReply) -> JsonObject | None:
        """Handle a reply without calls: ends the turn, unless a stop reason, a nudge or a hook continues it."""
        if reply.stop_reason == "pause_turn":
            return None
        if reply.stop_reason == "refusal":
            text = reply.text or "The model refused to answer"
            return make_success(text, "refusal", is_error=True, terminal_reason="model_error")
        if reply.stop_reason == "max_tokens":
            return self._continue_reply(reply)
        if self._state.schema is not None and self._nudge("schema", prompts.STRUCTURED_NUDGE):
            return None
        if not reply.text.strip() and self._nudge("empty", prompts.EMPTY_NUDGE):
            return None
        return await self._run_stop_hooks(reply)

    def _nudge(self, kind: str, text: str) -> bool:
        if kind in self._nudged:
            return False
        self._nudged.add(kind)
        self._state.history.add_user_message(prompts.make_reminder(text), isMeta=True)
        return True

    def _continue_reply(self, reply: StreamedReply) -> JsonObject | None:
        if self._continuations < MAX_CONTINUATIONS:
            self._continuations += 1
            self._state.history.add_user_message(prompts.CONTINUE_REPLY, isMeta=True)
            return None
        text = f"API Error: the reply is longer than {self._state.max_output} tokens"
        fields = {"is_error": True, "terminal_reason": "api_error", "api_error": "max_output_tokens"}
        return make_success(text, reply.stop_reason, **fields)

    async def _run_stop_hooks(self, reply: StreamedReply) -> JsonObject | None:
        about = {"stop_hook_active": self._is_stop_hook_active, "last_assistant_message": reply.text}
        hook_outcome = await self._state.run_hooks("Stop", about)
        if hook_outcome.stop_reason is not None:
            return make_success(reply.text, reply.stop_reason, terminal_reason="stop_hook_prevented")
        if hook_outcome.decision == "deny" or hook_outcome.contexts:
            self._is_stop_hook_active = True
            feedback = "\n".join([hook_outcome.reason, *hook_outcome.contexts]).strip()
            self._state.history.add_user_message(f"Stop hook feedback:\n{feedback}", isMeta=True)
            return None
        return make_success(reply.text, reply.stop_reason)

    async def _run_calls(self, reply: StreamedReply) -> JsonObject | None:
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

    def _find_end(self, calls: ToolCalls, reply: StreamedReply) -> JsonObject | None:
        if calls.structured_output is not None:
            text = encode_json(calls.structured_output).decode()
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

    async def finish_without_model(self, end: JsonObject) -> None:
        """Send the result of a prompt that the model does not see."""
        self._turns = 0
        await self._finish(end)

    async def _finish(self, end: JsonObject) -> None:
        await self._writer.flush()
        self._state.history.add_metadata(
            "cost-state", **self._state.totals.to_row(time.monotonic() - self._state.started_at)
        )
        self.is_finished, self.is_error = True, end["is_error"]
        about = {"num_turns": self._turns, "permission_denials": self._denials} | self._prompt_ids.result_fields | end
        if self._first_reply_at is not None:
            about["ttft_ms"] = round((self._first_reply_at - self._started_at) * 1000)
        await self._state.wire.send(frames.result(self._state, self._started_at, **about))
        await self._writer.flush()

    async def _finish_denied(self, calls: ToolCalls, reply: StreamedReply) -> JsonObject:
        await calls.answer_unfinished()
        self._record_results(calls)
        self._turns += 2
        await self._add_user_note(prompts.INTERRUPTED_TOOLS)
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
            await self._add_user_note(prompts.INTERRUPTED_TOOLS)
            terminal, stop_reason = "aborted_tools", "tool_use"
        else:
            self._turns += 1
            await self._record_partial_reply()
            terminal, stop_reason = "aborted_streaming", None
        await self._finish(make_failure("error_during_execution", terminal, "interrupted", stop_reason))

    async def _record_partial_reply(self) -> None:
        """Record the received part of a reply: whole blocks of text, and the beginning of one."""
        asking = self._request
        if asking is None or not asking.reply.header or asking.reply.is_complete:
            await self._add_user_note(prompts.INTERRUPTED)
            return
        reply = asking.reply
        kept = [(b, n) for b, n in zip(reply.blocks, asking.frame_uuids, strict=False) if b.get("type") == "text"]
        partial = reply.partial_block
        if partial is not None:
            frame = frames.assistant(reply.header, [partial], aborted=True, **self._prompt_ids.take_fields("assistant"))
            kept.append((partial, await self._state.wire.send(frame)))
        if kept:
            self._record_reply(reply, [name for _, name in kept], [block for block, _ in kept])
        await self._add_user_note(prompts.INTERRUPTED)
        await asking.close_stream(keep=len(reply.blocks) + (partial is not None))


class TranscriptWriter:
    """Writes the rows of a history; with `is_mirrored`, also sends every row to the host (`--session-mirror`)."""

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


def find_command(state: SessionState, text: str, frame: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the command in a prompt and its arguments, or None."""
    if not text.startswith("/") or frame.get("client_composed"):
        return None
    name, _, arguments = text[1:].strip().partition(" ")
    return (name, arguments.strip()) if name in frames.list_commands(state) else None


async def run_command(state: SessionState, name: str, arguments: str, user_uuid: str | None) -> JsonObject:
    """Run a command; returns the fields of the result."""
    await state.servers.wait()
    await state.wire.send(frames.init(state))
    if name == "clear":
        reset = {"type": "conversation_reset", "new_conversation_id": state.start_new_session(), "trigger": "clear"}
        await state.wire.send(reset | ({"user_message_uuid": user_uuid} if user_uuid else {}))
        await _add_start_hooks(state, "clear")
        return _make_command_result("clear", "")
    if not state.history.messages:
        return _make_command_result("compact", "There is nothing to compact yet.")
    try:
        is_done = await compact(state, "manual", arguments)
    except ApiError as error:
        return _make_command_result("compact", f"Error during compaction: {error.text}", is_error=True)
    return _make_command_result("compact", "Compacted" if is_done else "Compaction was blocked by a hook.")


async def _add_start_hooks(state: SessionState, source: str) -> None:
    """Run SessionStart hooks, and give their text to the model."""
    hook_outcome = await state.run_hooks("SessionStart", {"source": source, "model": state.model}, subject=source)
    if hook_outcome.contexts:
        state.history.add_user_message("\n".join(hook_outcome.contexts))


def _make_command_result(command: str, text: str, *, is_error: bool = False) -> JsonObject:
    about = {"is_error": is_error, "terminal_reason": "api_error" if is_error else "completed"}
    return make_success(text, None, local_command=command, **about)


RESERVED_TOKENS: Final = 33_000
"""Tokens of the context window that stay free for the next reply and the summary."""
MAX_WINDOW_SHARE: Final = 0.8
"""Share of a small window that may be used before compaction."""
MAX_CUTS: Final = 3
"""How often the older half is dropped when the conversation is too long even for the summary request."""
_SUMMARY: Final = re.compile(r"<summary>(.*?)(?:</summary>|\Z)", re.DOTALL)
_ANALYSIS: Final = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)


def needs_compaction(state: SessionState, usage: JsonObject) -> bool:
    """Whether the next request may not fit into the context window."""
    if state.env.get("DISABLE_AUTO_COMPACT") or state.env.get("DISABLE_COMPACT"):
        return False
    given = state.env.get("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "")
    window = int(given) if given.isdigit() else get_model(state.model).window
    return context_tokens(usage) > max(window - RESERVED_TOKENS, window * MAX_WINDOW_SHARE)


async def compact(state: SessionState, trigger: str, instructions: str = "", request: str = "") -> bool:
    """Compact the conversation; returns False if a hook blocked it. After an ApiError the conversation is unchanged.

    The summary heeds the `instructions` of the user. The `request` that is being answered is kept verbatim.
    """
    about = {"trigger": trigger, "custom_instructions": instructions or None}
    hook_outcome = await state.run_hooks("PreCompact", about, subject=trigger)
    if hook_outcome.decision == "deny":
        return False
    instructions = "\n".join([instructions, *hook_outcome.contexts]).strip()
    began = time.monotonic()
    await state.wire.send(frames.system("status", status="compacting"))
    try:
        summary, before = await _make_summary(state, instructions)
    except ApiError as error:
        await state.wire.send(
            frames.system("status", status=None, compact_result="failed", compact_error=error.message)
        )
        raise
    text = prompts.COMPACTED_MESSAGE.format(summary=summary, path=state.history.path)
    if request:
        text += f"\n\nThe request that is being worked on, word by word:\n\n{request}"
    milliseconds = round((time.monotonic() - began) * 1000)
    metadata = {"trigger": trigger, "preTokens": before, "durationMs": milliseconds}
    name = state.history.replace_with_summary(text, metadata)
    state.workplace.files_read.clear()
    await state.wire.send(frames.system("status", status=None, compact_result="success"))
    boundary = {"trigger": trigger, "pre_tokens": before, "duration_ms": milliseconds}
    await state.wire.send(frames.system("compact_boundary", compact_metadata=boundary, uuid=name))
    await state.wire.send(frames.user(text, isSynthetic=True))
    await _add_start_hooks(state, "compact")
    await state.run_hooks("PostCompact", {"trigger": trigger, "compact_summary": summary}, subject=trigger)
    return True


async def _make_summary(state: SessionState, instructions: str) -> tuple[str, int]:
    wanted = prompts.COMPACTION_PROMPT + (f"\n\nHeed as well: {instructions}" if instructions else "")
    messages = state.history.make_request_messages()
    for cut in range(MAX_CUTS + 1):
        asked = [*messages, {"role": "user", "content": [{"type": "text", "text": wanted}]}]
        if messages and messages[-1]["role"] == "user":
            last = messages[-1]
            asked = [*messages[:-1], last | {"content": [*last["content"], *asked[-1]["content"]]}]
        asking = ReplyRequest(state, PromptIds(), is_silent=True)
        try:
            reply = await asking.run(lambda asked=asked: state.make_request(asked))
        except ApiError as error:
            if not error.is_prompt_too_long or cut == MAX_CUTS:
                raise
            messages = _take_newer_half(messages)
            continue
        text = join_text(reply.blocks)
        if not text.strip():
            raise ApiError("the model gave no summary")
        found = _SUMMARY.search(text)
        summary = (found[1] if found else _ANALYSIS.sub("", text)).strip() or text.strip()
        return summary, context_tokens(reply.usage)
    raise AssertionError("the last round returns or raises")


def _take_newer_half(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the newer half, starting at a user message without tool results."""
    for place in range(len(messages) // 2, len(messages)):
        message = messages[place]
        if message["role"] == "user" and all(b.get("type") != "tool_result" for b in message["content"]):
            return messages[place:]
    return messages[-1:]
