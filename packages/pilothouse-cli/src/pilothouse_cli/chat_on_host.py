"""`pilothouse chat --remote`: a session of a host at this terminal, while others see and answer it in the console.

Owns the lines that are typed, and what is printed of the session. Everything goes over the host's REST API.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from pilothouse.errors import PilothouseError, RemoteError, UsageError
from pilothouse.messages import InitMessage, from_dict
from pilothouse.permissions import read_request
from pilothouse.support import LoopCondition, Redactor, secret_values
from pilothouse_cli.chat_input import preview_call
from pilothouse_cli.chat_logins import handle_mcp, list_needed_logins, log_in_to_claude
from pilothouse_cli.console import find_link
from pilothouse_cli.flags import ChatRequest
from pilothouse_cli.host_client import client_settings, explain_silence, read_body
from pilothouse_cli.progress import ChatProgressPrinter
from pilothouse_cli.screen import Screen, Style, escape_invisible
from pilothouse_remote import HostClient, HostedSession

RECONNECT_SECONDS = 1.0
HELP = (
    "Type a prompt and press Enter. While Claude works, it reads what you type before its next step; /queue TEXT keeps "
    "the text as the next prompt. To a request for approval, answer y (yes), a (always in this session) or n REASON; "
    "to a question, type the answer. /login [console] and /mcp [login NAME | logout NAME] log the host in. "
    "/interrupt stops the turn. /quit leaves; the session continues. /help shows this."
)
STEERING_NOTES = {
    "taken": "read by Claude",
    "next_turn": "read by Claude, in the next turn",
    "returned": "not read: send it again",
}
"""What became of words for a turn, if they are not a prompt of their own."""


async def chat_on_host(request: ChatRequest, screen: Screen) -> int:
    """Talk in a session of a host until the user leaves, or the piped lines are answered; return the exit code."""
    url, token = find_link(request.remote or "", os.environ)
    async with httpx2.AsyncClient(**client_settings(url, token)) as client:
        return await RemoteChat(client, request, screen, token).run()


class RemoteChat:
    """One run of the command; `resume` of the request names a session of the host."""

    def __init__(
        self, client: httpx2.AsyncClient, request: ChatRequest, screen: Screen, token: str | None = None
    ) -> None:
        self._client = client
        self._token = token
        self._request = request
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        self._printer = ChatProgressPrinter(screen, self._redact, thinking=request.thinking)
        self._asks: dict[str, dict[str, Any]] = {}
        self._session: dict[str, Any] = {}
        self._needed_logins: set[str] = set()  # those of the last turn, which were printed
        self._tasks: anyio.abc.TaskGroup | None = None
        self._typed: MemoryObjectReceiveStream[str] | None = None  # None until the first line is wanted
        self._own_prompts: list[str] = []
        self._changed = LoopCondition()
        # Ids of prompts, and of words for a turn. An answer may be there before the host's response with the id.
        self._sent: set[str] = set()
        self._answered: set[str] = set()

    async def run(self) -> int:
        """Run the conversation, and return the exit code."""
        self._session = await self._open_session()
        path = f"/v1/sessions/{self._session['id']}"
        self._screen.note(f"session {self._session['id']}", "quiet")
        self._screen.paragraph(HELP, "quiet")
        waiting = await self._call("GET", "/v1/asks")
        for approval in waiting["asks"]:
            self._note_approval(approval)
        async with anyio.create_task_group() as self._tasks:
            tasks = self._tasks
            tasks.start_soon(self._print_messages, f"{path}/events", tasks.cancel_scope)
            tasks.start_soon(self._note_events, str(waiting["events_from"]))
            await self._read_lines()
            tasks.cancel_scope.cancel()
        return 0

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return read_body(await self._client.request(method, path, json=body))
        except httpx2.TransportError as error:
            raise UsageError(f"--remote: {explain_silence(self._client.base_url, error)}") from None

    async def _open_session(self) -> dict[str, Any]:
        wanted = self._request.settings.get("resume")
        if wanted:
            known = (await self._call("GET", "/v1/sessions"))["sessions"]
            found = [each for each in known if str(each["id"]).startswith(str(wanted))]
            if len(found) != 1:
                raise UsageError(f"--resume: {len(found)} sessions of the host have an id that begins with {wanted!r}")
            return found[0]
        names = ("model", "permission_mode", "cwd")
        options = {name: self._request.settings[name] for name in names if name in self._request.settings}
        return await self._call("POST", "/v1/sessions", {"options": {"partial_messages": True, **options}})

    # What comes from the host.

    async def _follow(self, path: str, last: str | None) -> AsyncGenerator[tuple[str, Any]]:
        """Yield the events of a stream, which goes on where it broke off: name, data."""
        while True:
            headers = {} if last is None else {"Last-Event-ID": last}
            with suppress(httpx2.TransportError):
                async with self._client.stream("GET", path, headers=headers, timeout=None) as response:
                    if not response.is_success:
                        await response.aread()
                        read_body(response)
                    async for event in httpx2.EventSource(response):
                        last = event.id
                        yield event.event, event.json()
            await anyio.sleep(RECONNECT_SECONDS)

    async def _print_messages(self, path: str, scope: anyio.CancelScope) -> None:
        async for name, data in self._follow(path, None):
            if name == "end" and data.get("detail") == "closed":
                self._screen.note("the session was closed", "warning")
                scope.cancel()
            if name == "message":
                self._print_message(data)
                self._answered |= find_answered(data)
                self._changed.notify_all()

    def _print_message(self, data: dict[str, Any]) -> None:
        content = data.get("message", {}).get("content") if data.get("isReplay") else None
        if isinstance(content, str):
            if content in self._own_prompts:
                self._own_prompts.remove(content)
            else:  # of another viewer, or from before
                self._screen.end_text()
                self._screen.note(escape_invisible(f"> {self._redact(content)}"), "title")
            return
        if (outcome := STEERING_NOTES.get(find_outcome(data) or "")) is not None:
            self._screen.end_text()
            self._screen.note(escape_invisible(f"+ {self._redact(str(data['title']))} ({outcome})"), "title")
            return
        with suppress(PilothouseError):
            message = from_dict(data)
            self._printer.print_message(message)
            if isinstance(message, InitMessage):
                self._print_needed_logins(message)
        if data.get("type") == "result":
            self._screen.end_text()
            self._screen.idle()
            if data.get("is_error"):
                self._screen.note(
                    escape_invisible(self._redact(str(data.get("result") or data.get("subtype")))), "error"
                )
            self._printer = ChatProgressPrinter(self._screen, self._redact, thinking=self._request.thinking)

    def _print_needed_logins(self, init: InitMessage) -> None:
        lines = list_needed_logins(init) if self.can_ask else []
        for line in sorted({*lines} - self._needed_logins):
            self.print_line(line, "warning")
        self._needed_logins = {*lines}

    async def _note_events(self, last: str) -> None:
        async for name, data in self._follow("/v1/events", last):
            if name == "asked" and data["request"] is None:  # it is too long for an event
                for approval in (await self._call("GET", "/v1/asks"))["asks"]:
                    self._note_approval(approval)
            elif name == "asked":
                self._note_approval(data)
            elif name == "settled" and self._asks.pop(data["id"], None) is not None:
                self._screen.note(f"settled: {data['decision'] or 'withdrawn'}, by {data['by']}", "quiet")
            elif name == "session" and data["id"] == self._session["id"]:
                self._session = data
            self._changed.notify_all()

    def _note_approval(self, approval: dict[str, Any]) -> None:
        if approval["session"] != self._session["id"] or approval["id"] in self._asks:
            return
        self._asks[approval["id"]] = approval
        self._screen.end_text()
        self._screen.idle()
        self._screen.note(escape_invisible(f"? {self._redact(str(approval['title']))}"), "title")
        given = approval["request"].get("input", {})
        for question in given.get("questions", ()) if approval["kind"] == "question" else ():
            for number, option in enumerate(question.get("options", ()), 1):
                self._screen.note(escape_invisible(f"  {number}. {option.get('label')}"))
        if approval["kind"] == "plan":
            self._screen.note(escape_invisible(f"  {self._redact(str(given.get('plan')))}"))
        elif approval["kind"] == "permission":
            for line, style in preview_call(read_request(approval["request"])):
                self._screen.note(f"  {self._redact(line)}", style)
        elif approval["kind"] != "question":
            self._screen.note(escape_invisible(f"  {self._redact(json.dumps(given, ensure_ascii=False))}"))

    # What is typed.

    async def _read_lines(self) -> None:
        first = [self._request.prompt] if self._request.prompt else []
        while (line := first.pop() if first else await self._read_line()) is not None:
            try:
                if line.strip() == "/quit":
                    return
                await self._take_line(line.strip())
            except (UsageError, RemoteError) as error:
                self.print_line(str(error), "error")
        # The pipe has ended: its prompts are answered first.
        await self._changed.wait_until(lambda: self._sent <= self._answered)

    async def _read_line(self) -> str | None:
        if self._typed is None:
            assert self._tasks is not None
            send, self._typed = anyio.create_memory_object_stream[str](0)
            self._tasks.start_soon(self._read_stdin, send)
        with suppress(anyio.EndOfStream):
            return await self._typed.receive()
        return None

    async def _read_stdin(self, lines: MemoryObjectSendStream[str]) -> None:
        """Read standard input: a login may stop waiting for a line, and the line must not be lost then."""
        async with lines:
            while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                await lines.send(line)

    async def _take_line(self, line: str) -> None:
        path = f"/v1/sessions/{self._session['id']}"
        command, _, rest = line.partition(" ")
        if line == "/interrupt":
            await self._call("POST", f"{path}/interrupt")
        elif line == "/help":
            self._screen.paragraph(HELP, "quiet")
        elif command == "/queue":
            await self._queue(path, rest.strip())
        elif command == "/login":
            await log_in_to_claude(self, rest.strip())
        elif command == "/mcp":
            await handle_mcp(self, rest.strip())
        elif self._asks and line:
            approval = next(iter(self._asks.values()))
            await self._call("POST", f"{path}/asks/{approval['id']}", make_decision(approval, line))
            self._asks.pop(approval["id"], None)
        elif line and self._is_typed():
            self._own_prompts.append(line)
            given = await self._call("POST", f"{path}/steer", {"prompt": line})  # without a turn, they are a prompt
            self._sent.add(given["steering"])
        elif line:
            await self._queue(path, line)

    async def _queue(self, path: str, prompt: str) -> None:
        if not prompt:
            raise UsageError("give the text: /queue TEXT")
        self._own_prompts.append(prompt)
        sent = await self._call("POST", f"{path}/prompt", {"prompt": prompt})
        self._sent.add(sent["prompt"])

    # What a login needs.

    @property
    def session(self) -> HostedSession:
        """The session at the host."""
        client = HostClient(str(self._client.base_url), token=self._token, http=self._client)
        return client.session(str(self._session["id"]))

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer."""
        return self._is_typed()

    def print_line(self, line: str, style: Style = "") -> None:
        """Print one line for the user."""
        self._screen.note(escape_invisible(line), style)

    async def ask(self, question: str) -> str | None:
        """Return what a person types; None at the end of input."""
        self._screen.idle()
        self.print_line(question.strip(), "title")
        return await self._read_line()

    def _is_typed(self) -> bool:
        """Whether a person types the lines; each line of a pipe is a prompt."""
        return sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def find_outcome(data: dict[str, Any]) -> str | None:
    """Return what became of words for a turn, if the message says it."""
    return data.get("outcome") if data.get("type") == "system" and data.get("subtype") == "steering" else None


def find_answered(data: dict[str, Any]) -> set[str]:
    """Return the ids of the prompts, and of the words for a turn, that the message ends."""
    if data.get("type") == "result":
        named: list[str | None] = [*(data.get("user_message_uuids") or ()), data.get("user_message_uuid")]
        return {*filter(None, named)}
    if data.get("subtype") == "query_failed":
        return {data["prompt"]}
    return {data["steering"]} if find_outcome(data) == "returned" else set()


def make_decision(approval: dict[str, Any], line: str) -> dict[str, Any]:
    """Return the body that settles an approval as a line says; raises UsageError if the line does not."""
    word, _, rest = line.partition(" ")
    if word.lower() in ("n", "no"):
        return {"decision": "deny", "reason": rest.strip()}
    if approval["kind"] == "question":
        questions = approval["request"].get("input", {}).get("questions", [])
        if len(questions) != 1:
            raise UsageError("several questions: answer them in the console, or decline with n")
        options = [str(option.get("label")) for option in questions[0].get("options", ())]
        chosen = options[int(line) - 1] if line.isdecimal() and 1 <= int(line) <= len(options) else line
        return {"decision": "answer", "answers": {questions[0]["question"]: chosen}}
    if approval["kind"] == "elicitation":
        raise UsageError("a form: fill it in in the console, or decline with n")
    if line.lower() in ("y", "yes"):
        return {"decision": "allow"}
    if line.lower() in ("a", "always") and approval.get("can_always_allow"):
        return {"decision": "allow", "always": True}
    raise UsageError(
        "type y, or n REASON" + (", or a (always in this session)" if approval.get("can_always_allow") else "")
    )
