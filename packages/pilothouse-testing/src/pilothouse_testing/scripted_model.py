"""`ScriptedModel`: a Messages API on loopback whose answers are written in the test.

Owns the public interface: the life of the model, its script, its records. Other modules here have the wire format
(`api_responses`), the choice of answers (`script`) and HTTP (`api_server`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import anyio.to_thread

from pilothouse_testing.api_responses import JSON, IdFactory, ResponsePlan, assign_tool_ids, encode_json, plan_response
from pilothouse_testing.api_server import ApiServer
from pilothouse_testing.script import (
    AnswerLike,
    HttpError,
    Match,
    RecordedRequest,
    Script,
    ScriptRule,
    SideKind,
    Steps,
    find_side_kind,
    read_json,
    redact_headers,
)

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
PROBES = ("/", "/api/hello")
COUNTED_TOKENS = 10
MAX_LABEL_CHARS = 80
NOT_RUNNING = "this ScriptedModel does not run; use it in a `with` block"


class ScriptedModel:
    """A Messages API server for tests: the real CLI, or any other client, uses it over loopback.

    Use it as a context manager, blocking or async (on asyncio and trio); it serves from its own thread.

    A request of the conversation is answered by, in this order: the rule whose tool results it carries; the first
    rule that matches; the next queued reply; `default`; and else by an HTTP 400 that says so.
    Side requests (titles, summaries, token counts, probes) take nothing from the queue and are recorded apart.

    Args:
        *replies: the queue, as if given to `reply` one by one.
        default: the answer when there is no other one.

    Attributes:
        default: may be set at any time.

    Example:
        >>> import urllib.request
        >>> with ScriptedModel("Hello") as model:
        ...     rule = model.on("capital of France", reply="Paris.")
        ...     body = b'{"model": "m", "messages": [{"role": "user", "content": "The capital of France?"}]}'
        ...     with urllib.request.urlopen(model.url + "/v1/messages", body) as response:
        ...         answer = response.read().decode()
        >>> '"text": "Paris."' in answer, rule.used, model.requests[0].last_user_text
        (True, 1, 'The capital of France?')
        >>> model.unused
        ('queued: Hello',)
    """

    def __init__(self, *replies: AnswerLike, default: AnswerLike | None = None) -> None:
        self._script = Script(default=default)
        self._ids = IdFactory(uuid.uuid4().hex[:8])
        self._changed = threading.Condition()
        self._recorded: list[RecordedRequest] = []
        self._answered_by: list[str] = []
        self._server: ApiServer | None = None
        self._home: Path | None = None
        for reply in replies:
            self.reply(reply)

    # life

    def start(self) -> Self:
        """Start serving; `with` does it for you. Raises `RuntimeError` if the model is already running."""
        if self._server is not None:
            raise RuntimeError("this ScriptedModel runs already")
        server = ApiServer(self._respond)
        server.start()
        self._server = server
        self._home = Path(tempfile.mkdtemp(prefix="pilothouse-home-"))
        (self._home / "tmp").mkdir()
        return self

    def stop(self) -> None:
        """Cut all connections, end the thread, remove the temporary home. Idempotent, takes milliseconds."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await anyio.to_thread.run_sync(self.start)

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    @property
    def url(self) -> str:
        """The base URL, for `ANTHROPIC_BASE_URL`. Raises `RuntimeError` while the model is not running."""
        if self._server is None:
            raise RuntimeError(NOT_RUNNING)
        return f"http://127.0.0.1:{self._server.port}"

    def env(self, *, max_retries: int = 2, **extra: str) -> dict[str, str]:
        """Return the complete environment of a hermetic child process that uses this model.

        HOME and the CLI's configuration are in a temporary directory that is removed when the model stops.

        Args:
            max_retries: how often the CLI retries a failed request.
            **extra: more variables; they override the others.
        """
        return hermetic_environment(self.home, base_url=self.url, max_retries=max_retries, **extra)

    @property
    def home(self) -> Path:
        """The temporary HOME of `env`; also usable as a working directory. Raises `RuntimeError` if not running."""
        if self._home is None:
            raise RuntimeError(NOT_RUNNING)
        return self._home

    # script

    @property
    def default(self) -> AnswerLike | None:
        """The answer to requests of the conversation that have no other answer."""
        return self._script.default

    @default.setter
    def default(self, answer: AnswerLike | None) -> None:
        self._script.default = answer

    def reply(self, answer: AnswerLike | Steps) -> None:
        """Queue an answer for the next request of the conversation that no rule matches.

        Args:
            answer: a text, a part, a list of parts, a `Reply`, a failure, or a function of the request; `Steps`
                queues each of its answers.
        """
        with self._changed:
            self._script.queue.extend(answer.answers if isinstance(answer, Steps) else (answer,))

    def on(
        self,
        match: Match = None,
        reply: AnswerLike | Steps = "ok",
        *,
        times: int | None = None,
        side: str | None = None,
        name: str = "",
    ) -> ScriptRule:
        """Add a rule.

        Args:
            match: a substring of, or a compiled pattern found in, the text since the last assistant message (the
                user's text, or the text of tool results); or a function of the `RecordedRequest`; None matches all.
            reply: as in `reply`; `Steps` gives its answers in order, from the first one in each conversation.
            times: how many requests the rule may answer; None: any number.
            side: answer side requests of this kind (such as "title" or "compact") instead of the conversation.
            name: the name of the rule in messages.
        """
        is_sequence = isinstance(reply, Steps)
        rule = ScriptRule(match, reply.answers if is_sequence else (reply,), is_sequence, times, side, name)
        with self._changed:
            self._script.rules.append(rule)
        return rule

    # records

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """The requests of the conversation, in order of arrival."""
        with self._changed:
            return tuple(r for r in self._recorded if not r.is_side)

    @property
    def side_requests(self) -> tuple[RecordedRequest, ...]:
        """All other requests, in order of arrival."""
        with self._changed:
            return tuple(r for r in self._recorded if r.is_side)

    @property
    def answered_by(self) -> tuple[str, ...]:
        """The source of the answer to each of `requests`: a rule, "queue", "default", or "nothing"."""
        with self._changed:
            return tuple(self._answered_by)

    @property
    def errors(self) -> tuple[str, ...]:
        """Requests without an answer in the script, and failures of the script's functions."""
        with self._changed:
            return tuple(self._script.errors)

    @property
    def unused(self) -> tuple[str, ...]:
        """Rules that never answered, rules with unused steps, and queued replies that are left."""
        with self._changed:
            rules = [r.label for r in self._script.rules if r.used == 0]
            begun = [
                f"{r.label} after step {max(r.positions.values())} of {len(r.answers)}"
                for r in self._script.rules
                if r.positions and max(r.positions.values()) < len(r.answers)
            ]
            return (*rules, *begun, *(f"queued: {_shorten(answer)}" for answer in self._script.queue))

    def assert_done(self) -> None:
        """Raise `AssertionError` unless every rule and queued reply was used and every request had an answer."""
        problems = [*self.errors, *(f"never used: {rule}" for rule in self.unused)]
        if problems:
            raise AssertionError("the script was not followed:\n  " + "\n  ".join(problems))

    def wait_for_requests(self, count: int = 1, timeout: float = 10.0) -> tuple[RecordedRequest, ...]:
        """Block until `count` requests of the conversation have arrived, and return all of them.

        Raises `TimeoutError` after `timeout` seconds. From async code: `await anyio.to_thread.run_sync(…)`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._count() >= count, timeout):
                raise TimeoutError(f"{self._count()} of {count} requests arrived within {timeout} s")
        return self.requests

    def _count(self) -> int:
        return sum(not request.is_side for request in self._recorded)

    # the server's side

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> ResponsePlan:
        with self._changed:
            request, kind = self._classify(method, path, headers, body)
            self._recorded.append(request)
            result = self._plan_answer(request, kind)
            self._changed.notify_all()
        return result

    def _classify(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[RecordedRequest, SideKind | None]:
        def make(side: str | None) -> RecordedRequest:
            number = len(self._recorded) + 1
            return RecordedRequest(method, path, redact_headers(headers), content, side, number, time.monotonic())

        content = read_json(body)
        if method == "POST" and path == MESSAGES:
            kind = find_side_kind(make(None))
            return make(kind.name if kind else None), kind
        if path == COUNT_TOKENS:
            return make("count_tokens"), None
        return make("probe" if path in PROBES else "other"), None

    def _plan_answer(self, request: RecordedRequest, kind: SideKind | None) -> ResponsePlan:
        if request.path != MESSAGES or request.method != "POST":
            return self._plan_other_answer(request)
        choice = self._script.choose(request, kind)
        if not request.is_side:
            self._answered_by.append(choice.source)
        answer, given = assign_tool_ids(choice.answer, self._ids)
        self._script.expect_results(given, choice)
        result = plan_response(answer, stream=request.stream, model=request.model, ids=self._ids)
        return replace(result, headers={"request-id": self._ids.make_id("req"), **result.headers})

    def _plan_other_answer(self, request: RecordedRequest) -> ResponsePlan:
        match request.side:
            case "count_tokens":
                return ResponsePlan([encode_json({"input_tokens": COUNTED_TOKENS})], 200, JSON)
            case "probe":
                return ResponsePlan([encode_json({"scripted_model": True})], 200, JSON)
            case _:
                message = f"the scripted model has no {request.method} {request.path}"
                return plan_response(HttpError(404, message=message), stream=False, model="", ids=self._ids)


def _shorten(answer: AnswerLike) -> str:
    """Return a short text for an answer in a message."""
    text = getattr(answer, "__name__", None) or (answer if isinstance(answer, str) else repr(answer))
    return text if len(text) <= MAX_LABEL_CHARS else text[:MAX_LABEL_CHARS] + "…"


FAKE_KEY = "sk-ant-scripted-model-no-real-key"
# Turn off telemetry, update checks, error reports, and all other network use of the CLI.
QUIET_VARIABLES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
POSIX_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def hermetic_environment(
    home: str | Path, *, base_url: str, api_key: str = FAKE_KEY, max_retries: int = 2, **extra: str
) -> dict[str, str]:
    """Return the complete environment of a hermetic child process.

    Args:
        home: a directory for HOME; its `.claude` becomes the CLI's configuration directory.
        base_url: URL of the Messages API.
        api_key: a key that need not be secret.
        max_retries: how often the CLI retries a failed request; the waits grow from about 0.5 s.
        **extra: more variables; they override the others.

    Example:
        >>> env = hermetic_environment("/tmp/h", base_url="http://127.0.0.1:1", max_retries=0)
        >>> env["ANTHROPIC_BASE_URL"], env["CLAUDE_CODE_MAX_RETRIES"]
        ('http://127.0.0.1:1', '0')
    """
    home = Path(home)
    env = {
        **QUIET_VARIABLES,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url,
        "CLAUDE_CODE_MAX_RETRIES": str(max_retries),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1,localhost",
        "PATH": POSIX_PATH,
        "TMPDIR": str(home / "tmp"),
    }
    if os.getuid() == 0:
        # The CLI refuses some permission modes to root unless IS_SANDBOX says that this is a sandbox.
        env["IS_SANDBOX"] = "1"
    return env | extra
