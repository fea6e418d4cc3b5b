"""`LocalModel`: starts and ends the child that serves the embedded model, and has settings for Claude Code.

Owns the life of that child. Knows nothing of llama.cpp (see `server`), nor of how the model file is fetched (see
`pilothouse.provision`).
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import anyio

from pilothouse.errors import ProcessError, UsageError
from pilothouse.support import run_blocking, run_cancellable

MODEL_NAME = "smollm2-135m-instruct"
SYSTEM_PROMPT = "Answer the question in one or two sentences."
"""With it, the embedded model knows the capital of France, and how much two and two are."""
CONTEXT_SIZE = 8192
"""Tokens; the size that the model was trained for."""
MAX_ANSWER_TOKENS = 150
"""Tokens of an answer in words of the embedded model. It has said what it knows by then."""
START_TIMEOUT_SECONDS = 60.0
"""Seconds. Loading takes 1 to 3 s on an idle machine with two cores."""
STOP_GRACE_SECONDS = 1.0
"""Seconds. The child ends within milliseconds of the end of its input; otherwise it is killed."""
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 2000
"""Bytes of the child's log that an error quotes."""

Progress = Callable[[str, int, int | None], object]
"""Called with a stage, the bytes done in it and, if known, the total bytes of the stage.

The stages are those of `pilothouse.provision.installer.Progress`, if the model must be fetched, then `load`.
"""

_SERVER = str(Path(__file__).with_name("server.py"))

_CLI_VARIABLES = {
    # At the limit the CLI requests more, three times, and then fails. Output of this model that has not ended by then
    # never ends.
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "500",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    # Settings for a real model, overridden: empty counts as not set.
    "ANTHROPIC_AUTH_TOKEN": "",
    "ANTHROPIC_CUSTOM_HEADERS": "",
    "CLAUDE_CODE_OAUTH_TOKEN": "",
    "CLAUDE_CODE_USE_BEDROCK": "",
    "CLAUDE_CODE_USE_FOUNDRY": "",
    "CLAUDE_CODE_USE_VERTEX": "",
    # A proxy cannot reach the loopback address of this machine.
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def check_extra() -> None:
    """Check that the extra for the local model is installed.

    Raises:
        UsageError: it is not; names the extra.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("the local model needs an extra: pip install 'pilothouse[local]'")


class LocalModel:
    """A small open model (SmolLM2-135M-Instruct, Apache-2.0) that serves the Messages API on loopback.

    Real responses without a key, a login or a network, good for experiments and for liveness checks. The responses
    are weak, and requests run one at a time. Tools in a request are accepted and ignored, unless `calls_tools` is
    set. Use it as a context manager, plain or async::

        with LocalModel() as model:
            subprocess.run([...], env={..., **model.env()})

        async with LocalModel() as model:
            await query("What is the capital of France?", **model.options())

    A child process serves it. The child ends with the block, and also when this process dies. The server accepts
    requests only with the key in `env()`, which is new each time. The same question gets the same answer.

    Args:
        model: a model file (GGUF) to serve; default: the embedded one, which is fetched into the cache if needed.
        context_size: tokens of prompt and response together. Default 8192.
        calls_tools: for requests with tools, restrict responses by a JSON Schema, so that each is a well-formed call
            of one tool, or a text. The calls make little sense: allow nothing harmful. After three results the
            response must be text.
        start_timeout: seconds that loading may take, without fetching. Default 60.
        progress: callback for the progress of the start; called in the thread that starts the model.

    Raises:
        UsageError: on entering, if the extra `pilothouse[local]` is not installed.
        ProvisionError: on entering, if the model cannot be fetched.
        ProcessError: on entering, if the model does not load in time.
    """

    def __init__(
        self,
        model: Path | str | None = None,
        *,
        context_size: int = CONTEXT_SIZE,
        calls_tools: bool = False,
        start_timeout: float = START_TIMEOUT_SECONDS,
        progress: Progress | None = None,
    ) -> None:
        self._model = None if model is None else Path(model)
        self._context_size = context_size
        self._calls_tools = calls_tools
        self._start_timeout = start_timeout
        self._progress = progress
        self._key = f"sk-local-{secrets.token_hex(16)}"
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Base URL of the Messages API, such as `http://127.0.0.1:40123`."""
        if self._url is None:
            raise UsageError("the local model is not running: use it inside `with LocalModel() as model:`")
        return self._url

    def env(self) -> dict[str, str]:
        """Return the environment variables that direct Claude Code to this model and to no other."""
        return {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": self._key, **_CLI_VARIABLES}

    def options(self) -> dict[str, Any]:
        """Return pilothouse options, by name, with which Claude Code fits into this model's context."""
        return {
            "bare": True,
            "env": self.env(),
            "model": "claude-haiku-4-5",
            "setting_sources": [],
            "strict_mcp_config": True,
            "system_prompt": SYSTEM_PROMPT,
            "tools": [],
        }

    def start(self) -> None:
        """Fetch the model if needed, and serve it. Blocking; `with` calls it."""
        self._start(_continue)

    def _start(self, check: Callable[[], object]) -> None:
        """Start; `check` is called all the time, and raises if the caller no longer waits."""
        if self._child is not None:
            raise UsageError("the local model is running already")
        check_extra()
        path = self._model or self._fetch_model(check)
        if not path.is_file():
            raise UsageError(f"there is no model file {path}")
        size = path.stat().st_size
        self._report("load", 0, size)
        try:
            self._url = self._launch(path, check)
        except BaseException:
            self.stop()
            raise
        self._report("load", size, size)

    def stop(self) -> None:
        """End the child, in a second at most. Blocking and idempotent; the end of the block calls it."""
        child, self._child, self._url = self._child, None, None
        if child is not None:
            _end_child(child)
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await run_cancellable(self._start)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await run_blocking(self.stop)

    def _fetch_model(self, check: Callable[[], object]) -> Path:
        from pilothouse.provision import ensure_model

        def report(stage: str, done: int, total: int | None) -> None:
            check()
            self._report(stage, done, total)

        return ensure_model(report)

    def _report(self, stage: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)

    def _launch(self, path: Path, check: Callable[[], object]) -> str:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        settings: Mapping[str, object] = {
            "calls_tools": self._calls_tools,
            "context_size": self._context_size,
            "key": self._key,
            "max_tokens": MAX_ANSWER_TOKENS if self._model is None else None,
            "model": str(path),
            "name": MODEL_NAME if self._model is None else path.stem,
        }
        try:
            # A session of its own: Ctrl-C goes to this process, which then ends the child. -P: no file in the
            # script's or the working directory may be imported as a module.
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", _SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"the local model could not be started: {error.strerror}") from error
        line = self._read_first_line(child, json.dumps(settings).encode() + b"\n", check)
        if not line:
            raise self._make_start_error(child)
        return json.loads(line)["url"]

    def _read_first_line(self, child: subprocess.Popen[bytes], settings: bytes, check: Callable[[], object]) -> bytes:
        """Return the child's first line; b"" if it ends before. Read in a thread: pipes have no portable timeout."""
        assert child.stdin is not None
        assert child.stdout is not None
        output, lines = child.stdout, list[bytes]()
        reader = threading.Thread(target=lambda: lines.append(output.readline()), name="pilothouse-local", daemon=True)
        reader.start()
        try:
            child.stdin.write(settings)
            child.stdin.flush()
            waited = 0.0
            while reader.is_alive():
                check()
                reader.join(POLL_SECONDS)
                waited += POLL_SECONDS
                if waited > self._start_timeout:
                    raise ProcessError(
                        f"the local model did not load within {self._start_timeout:g} s", stderr=self._read_log_tail()
                    )
        except BrokenPipeError:
            reader.join()
        finally:
            if reader.is_alive():
                child.kill()
                reader.join()
        return lines[0]

    def _make_start_error(self, child: subprocess.Popen[bytes]) -> ProcessError:
        code = child.wait()
        tail = self._read_log_tail()
        name = None if code >= 0 else signal.Signals(-code).name
        how = name or f"exit code {code}"
        last = tail.splitlines()[-1] if tail else "no message"
        advice = ". On Debian and Ubuntu: apt-get install libgomp1" if "libgomp.so" in last else ""
        return ProcessError(
            f"the local model ended while loading ({how}): {last}{advice}",
            exit_code=code if code >= 0 else None,
            signal=name,
            stderr=tail,
        )

    def _read_log_tail(self) -> str:
        assert self._log is not None
        self._log.seek(max(0, self._log.seek(0, 2) - LOG_TAIL_BYTES))
        return self._log.read().decode("utf-8", "replace").strip()


def _continue() -> None: ...


def _end_child(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already
        child.stdin.close()
    try:
        child.wait(STOP_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    finally:
        child.stdout.close()
