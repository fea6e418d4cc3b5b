"""`FakeCLI`: an executable that plays a scenario on the wire in place of `claude`.

Owns the scenario (steps, as data), its files, reading its record, and converting a recorded transcript to steps.
`fake_child.py` plays the steps; `frames.py` has the frames.
"""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import sys
import tempfile
import textwrap
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

from pilothouse_testing import frames
from pilothouse_testing.cassettes.format import CassetteEntry, read_cassette
from pilothouse_testing.frames import Frame

Output: TypeAlias = Mapping[str, Any] | str | bytes

PARTIAL = "--include-partial-messages"
# Linux cuts a `#!` line after 255 bytes and splits it at blanks; longer paths go through a shell.
SHEBANG_BYTES = 200
# -S: no site directories, -E: no PYTHON* variables; the child starts in about 15 ms.
PYTHON_FLAGS = "-SE"
CHILD = Path(__file__).with_name("fake_child.py")

# Responses to control requests that no step waits for.
CONTROL_ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {"payload": frames.server_info()},
    "interrupt": {"payload": {"still_queued": []}},
    "set_model": {"payload": {}},
    "set_permission_mode": {"payload": {}},
    "get_usage": {"payload": frames.no_usage()},
}


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One run of a fake CLI, read from its record; complete once the child has ended.

    Args:
        argv: the arguments, without the executable.
        env: the environment of the child.
        cwd: its working directory.
        pid: its process id.
        stdin: the lines that it read, including newlines.
        exit_code: its exit code if it exited by itself, or None.
        signals: names of the signals that it survived.
        grandchildren: process ids of the processes started by `spawn_grandchild`.
        saw_eof: whether its stdin ended while it was running.
    """

    argv: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str = ""
    pid: int = 0
    stdin: list[str] = field(default_factory=list[str])
    exit_code: int | None = None
    signals: list[str] = field(default_factory=list[str])
    grandchildren: list[int] = field(default_factory=list[int])
    saw_eof: bool = False

    @property
    def frames(self) -> list[Frame]:
        """The stdin lines that are JSON objects."""
        return [frame for frame in map(_parse_object, self.stdin) if frame is not None]

    @property
    def prompts(self) -> list[Any]:
        """The content of each user message, in order."""
        return [f["message"]["content"] for f in self.frames if f.get("type") == "user"]

    def control(self, subtype: str) -> list[Frame]:
        """The bodies of the control requests of one subtype."""
        requests = (frame["request"] for frame in self.frames if frame.get("type") == "control_request")
        return [request for request in requests if request.get("subtype") == subtype]


class FakeCLI:
    """A scripted child in place of `claude`: `cli=fake.path`.

    Verbs add steps and return the fake, so that a scenario reads from left to right. The child plays them in order,
    waits for the end of its stdin and exits: with 1 if the last result was an error, else with 0. If another prompt
    comes after the last step, the child writes so to stderr and exits with 1. Meanwhile it responds to `initialize`,
    `interrupt`, `set_model`, `set_permission_mode` and `get_settings` (it takes all settings) by itself, and to other
    control requests with an error, unless a step waits for them.
    Without `--input-format stream-json` the prompt is the last
    argument and stdin is not read. `--version` prints `version`, and is not recorded.

    The files are removed by `close`, at the end of a `with` block, or with the object.

    Args:
        version: the version that `--version` prints.
        reads: False: never reads stdin, so that the writer finds a full pipe.
        mark: whether frames name the uuid of the user message that they answer, as those of the real CLI do.
        lifecycle: whether the child reports the state of each user message that has a uuid, as the real CLI does, in
            `command_lifecycle` frames: "queued" and "started" when a step takes it, "completed" after its result.
            False if the scenario writes these frames itself.

    Example:
        >>> import subprocess
        >>> with FakeCLI().text("Hello") as fake:
        ...     done = subprocess.run([fake.path, "--print", "Say hello"], capture_output=True)
        ...     [call] = fake.calls
        >>> [json.loads(line)["type"] for line in done.stdout.splitlines()]
        ['system', 'assistant', 'result']
        >>> call.argv, call.exit_code
        (['--print', 'Say hello'], 0)
    """

    def __init__(
        self, *, version: str = frames.VERSION, reads: bool = True, mark: bool = True, lifecycle: bool = True
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="pilothouse-fake-"))
        self._remove = weakref.finalize(self, shutil.rmtree, str(self._home), True)
        self._steps: list[list[Any]] = []
        self._manual: dict[str, int] = {}
        self._scenario: dict[str, Any] = {
            "version": version,
            "reads": reads,
            "mark": mark,
            "lifecycle": lifecycle,
            "forever": False,
            "controls": dict(CONTROL_ANSWERS),
        }
        (self._home / "calls").mkdir()
        self._write_executable()
        self._save()

    # constructors

    @classmethod
    def from_function(cls, play: Callable[[Any], object], *, manual: tuple[str, ...] = (), **settings: Any) -> Self:
        """Make a child that runs the source of a function.

        Args:
            play: takes the child, whose methods are the verbs (and `argv`, `env`, `user`); it is copied as text, so
                it must import what it needs inside and cannot use names of the test around it.
            manual: subtypes of control requests that the function expects itself.
            **settings: as for `FakeCLI`.
        """
        source = textwrap.dedent(inspect.getsource(play))
        definition = next((n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)), None)
        if definition is None:
            raise ValueError("FakeCLI.from_function needs a function made by `def`")
        fake = cls(**settings)
        fake._manual = dict.fromkeys(manual, sys.maxsize)
        fake._scenario |= {"source": ast.unparse(definition), "function": definition.name}
        fake._save()
        return fake

    @classmethod
    def from_transcript(cls, path: str | Path, **settings: Any) -> Self:
        """Make a child that writes what a recorded one wrote.

        The child waits for the recorded input (user messages, control requests, control responses); request ids and
        uuids of user messages are replaced by the current ones. Stderr, exit code and a deadly signal are played too;
        times are not.

        Args:
            path: a cassette (its first connection), or any recording of one JSON object
                `{"t", "dir": "in" | "out" | "err" | "meta", "msg"}` a line.
            **settings: as for `FakeCLI`.
        """
        settings.setdefault("lifecycle", False)
        fake = cls(**settings)
        for step in make_transcript_steps(Path(path).read_bytes(), str(path)):
            fake._add(step[0], *step[1], **step[2])
        return fake

    @classmethod
    def shell(cls, script: str, **settings: Any) -> Self:
        """Use a plain shell script as the CLI; it records nothing.

        >>> FakeCLI.shell("echo done").calls
        []
        """
        fake = cls(**settings)
        Path(fake.path).write_text("#!/bin/sh\n" + script, "utf-8")
        return fake

    def _write_executable(self) -> None:
        executable = self._home / "claude"
        python = sys.executable
        if len(python) <= SHEBANG_BYTES and " " not in python:
            text = f"#!{python} {PYTHON_FLAGS}\n" + CHILD.read_text("utf-8")
        else:
            shutil.copyfile(CHILD, self._home / "fake_child.py")
            text = f'#!/bin/sh\nexec "{python}" {PYTHON_FLAGS} "{self._home}/fake_child.py" "$@"\n'
        executable.write_text(text, "utf-8")
        executable.chmod(0o700)

    def _save(self) -> Self:
        scenario = self._scenario | {"steps": self._steps, "manual": self._manual}
        (self._home / "scenario.json").write_text(json.dumps(scenario), "utf-8")
        return self

    def _add(self, verb: str, /, *args: Any, **kwargs: Any) -> Self:
        if verb == "expect" and args[0] == "control_request":
            subtype = args[1] or ""
            self._manual[subtype] = self._manual.get(subtype, 0) + 1
        self._steps.append([verb, args, kwargs])
        return self._save()

    # life

    @property
    def path(self) -> str:
        """The path of the executable."""
        return str(self._home / "claude")

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def calls(self) -> list[FakeCall]:
        """The runs so far, in the order in which they started."""
        return [_read_call(path) for path in sorted((self._home / "calls").glob("*.jsonl"))]

    # whole turns

    def text(self, text: str, **result: Any) -> Self:
        """Wait for a prompt and answer with a text: init, assistant, result; also stream events if `argv` wants them.

        Args:
            text: the answer.
            **result: fields of the result frame.
        """
        self._add("expect", "user")
        self._add("emit", frames.init())
        self._add("emit", *frames.stream_text(text), when=PARTIAL)
        self._add("emit", frames.assistant(text), unless=PARTIAL)
        return self._add("emit", frames.result(text, **result))

    def turn(self, *outputs: Output) -> Self:
        """Wait for a prompt and write exactly these frames."""
        return self.expect("user").emit(*outputs)

    def forever(self) -> Self:
        """Repeat the steps until stdin ends at an `expect`."""
        self._scenario["forever"] = True
        return self._save()

    # verbs: output

    def emit(self, *outputs: Output) -> Self:
        """Write each: a mapping as one line of JSON; a string or bytes exactly as they are, no newline added."""
        for output in outputs:
            if isinstance(output, Mapping):
                self._add("emit", dict(output))
            else:
                data = output.encode("utf-8", "surrogatepass") if isinstance(output, str) else output
                self._add("raw", data.decode("latin-1"))
        return self

    def repeat(self, count: int, frame: Mapping[str, Any]) -> Self:
        """Write one frame `count` times, as fast as the pipe accepts it."""
        return self._add("repeat", count, dict(frame))

    def chunked(self, size: int, delay: float = 0.0) -> Self:
        """From here on write at most `size` bytes at a time, `delay` seconds apart; 0: whole lines again."""
        return self._add("chunked", size, delay)

    def stderr(self, text: str) -> Self:
        """Write to stderr."""
        return self._add("stderr", text)

    def close_stdout(self) -> Self:
        """Close stdout and keep running."""
        return self._add("close_stdout")

    # verbs: input and control

    def expect(self, type: str = "user", subtype: str | None = None) -> Self:  # noqa: A002 - the wire's name
        """Wait for a frame from the client: "user", "control_request" of a subtype, "control_response", …

        If stdin ends first, the child exits. Other frames are kept for later steps.
        """
        return self._add("expect", type, subtype)

    def reply(self, payload: Any = None, *, error: str | None = None, code: str | None = None) -> Self:
        """Respond to the control request that was expected last, with a payload or with an error and its code."""
        return self._add("reply", payload, error=error, code=code)

    def on_control(
        self,
        subtype: str,
        payload: Any = None,
        *,
        error: str | None = None,
        code: str | None = None,
        silent: bool = False,
    ) -> Self:
        """Set the response to all control requests of a subtype; `silent`: no response."""
        answer = {"silent": True} if silent else {"payload": payload, "error": error, "code": code}
        self._scenario["controls"][subtype] = answer
        return self._save()

    def ask(self, subtype: str, *, wait: bool = True, **body: Any) -> Self:
        """Send a control request, such as `ask("can_use_tool", tool_name="Bash", input={…})`.

        Args:
            subtype: subtype of the request.
            wait: whether the next step waits for the response (it is recorded in `calls` either way).
            **body: more fields of the request.
        """
        return self._add("ask", subtype, wait=wait, **body)

    def cancel(self) -> Self:
        """Cancel the last `ask`."""
        return self._add("cancel")

    def wait_eof(self) -> Self:
        """Wait until stdin has ended."""
        return self._add("wait_eof")

    # verbs: life of the child

    def sleep(self, seconds: float) -> Self:
        """Do nothing for a while."""
        return self._add("sleep", seconds)

    def hang(self) -> Self:
        """Do nothing until killed, even when stdin ends."""
        return self._add("hang")

    def exit(self, code: int = 0) -> Self:
        """Exit here."""
        return self._add("exit", code)

    def kill(self, signal: str = "SIGKILL") -> Self:
        """Die by a signal here."""
        return self._add("kill", signal)

    def ignore_sigterm(self) -> Self:
        """Survive SIGTERM from here on; each one is listed in `FakeCall.signals`."""
        return self._add("ignore_sigterm")

    def spawn_grandchild(self, seconds: float = 60.0, *, own_group: bool = False) -> Self:
        """Start a process that holds stdout open for `seconds`; `own_group` puts it into a separate process group."""
        return self._add("spawn_grandchild", seconds, own_group=own_group)


def _parse_object(line: str) -> Frame | None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    return cast("Frame", value) if isinstance(value, dict) else None


def _read_call(path: Path) -> FakeCall:
    fields: dict[str, Any] = {name: [] for name in ("stdin", "signals", "grandchildren")}
    for line in path.read_text("utf-8").splitlines():
        for name, value in (_parse_object(line) or {}).items():  # nothing: the child was killed within this line
            if name in ("stdin", "signals", "grandchildren"):
                fields[name].append(value)
            else:
                fields[name] = value
    return FakeCall(**fields)


FakeStep: TypeAlias = tuple[str, list[Any], dict[str, Any]]


def make_transcript_steps(data: bytes, name: str = "the recording") -> list[FakeStep]:
    """Make the steps that play a recording, its first connection; raises CassetteError if it is damaged."""
    connection = read_cassette(data, name).connections[0]
    entries = connection.entries
    steps: list[FakeStep] = []
    # A prompt that was recorded as an argument may now come through stdin.
    is_from_argument = any(map(_is_result, entries)) and all(entry.direction != "in" for entry in entries)
    if is_from_argument:
        steps.append(("expect", ["user", None], {}))
    for entry in entries:
        steps.extend(_make_steps(entry))
    ending = connection.exit_info()
    if ending.signal is not None:
        return [*steps, ("kill", [ending.signal], {})]
    # A healthy process waited for the end of its stdin.
    waited = is_from_argument or connection.event("stdin_eof")
    return [*steps, *([("wait_eof", [], {})] if waited else []), ("exit", [ending.exit_code or 0], {})]


def _is_result(entry: CassetteEntry) -> bool:
    return entry.direction == "out" and (entry.frame or {}).get("type") == "result"


def _make_steps(entry: CassetteEntry) -> list[FakeStep]:
    """Wait for a frame like the one written to the CLI, or write what the CLI wrote."""
    frame = entry.frame
    match entry.direction, frame or {}:
        case "in", {"type": "user"}:
            return [("expect", ["user", None], {"rename": (frame or {}).get("uuid")})]
        case "in", {"type": "control_request", "request": {"subtype": str(subtype)}}:
            return [("expect", ["control_request", subtype], {"rename": (frame or {}).get("request_id")})]
        case "in", {"type": "control_response"}:
            return [("expect", ["control_response", None], {})]
        case "out", _:
            return [("raw", [entry.data.decode("latin-1")], {})] if frame is None else [("emit", [frame], {})]
        case "err", _:
            return [("stderr", [entry.text.rstrip("\n") + "\n"], {})]
        case _:
            return []
