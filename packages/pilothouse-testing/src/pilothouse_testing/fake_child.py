"""The child process of a `FakeCLI`: plays steps on stdout, reads and records stdin.

Runs as a separate program under `python -S -E`, beside a `scenario.json`; the file is copied there, so it imports
only the standard library, and little of that. Owns playing; `fake_cli.py` decides what is played.
"""

# ruff: noqa: D102 - `FakeCLI` says what each verb does

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn, cast

# Frames in which the CLI puts the uuids of the user messages that they answer.
MARKED_TYPES = ("result", "assistant")
UUID_FIELDS = ("user_message_uuid", "user_message_uuids")
UNANSWERED = "FakeCLI: the scenario has ended, but another prompt came; add a text(…) for each prompt, or forever()\n"


class FakeChild:
    """The verbs of a scenario; functions given to `FakeCLI.from_function` get an instance."""

    def __init__(self, scenario: dict[str, Any], record: str) -> None:
        self.scenario = scenario
        self.argv: list[str] = sys.argv[1:]
        self.env: dict[str, str] = dict(os.environ)
        self.user: dict[str, Any] = {}
        self.request: dict[str, Any] = {}
        self.asked = ""
        self.failed = False
        self.streaming = _flag_value(self.argv, "--input-format") == "stream-json"
        self._record_file = open(record, "a", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the process ends
        self._frames: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._writing = threading.RLock()
        self._eof = not self.streaming
        self._prompted = False
        self._manual: dict[str, int] = dict(scenario["manual"])
        self._renames: dict[str, str] = {}
        self._open_prompts: list[str] = []  # uuids of user messages that wait for their result
        self._chunk: tuple[int, float] = (0, 0.0)
        self._asks = 0
        self._managed_settings: Any = None
        self.note(argv=self.argv, env=self.env, cwd=os.getcwd(), pid=os.getpid())  # noqa: PTH109 - pathlib is slow to load

    # recording

    def note(self, **entry: Any) -> None:
        """Append one line to the record and flush it, so that a kill loses nothing."""
        with self._writing:
            self._record_file.write(json.dumps(entry) + "\n")
            self._record_file.flush()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self.note(stdin=line.decode("utf-8", "surrogateescape"))
            try:
                frame: Any = json.loads(line)
            except ValueError:
                continue
            self._receive(frame)
        self.note(saw_eof=True)
        with self._changed:
            self._eof = True
            self._changed.notify_all()

    def _receive(self, value: Any) -> None:
        frame = cast("dict[str, Any]", value)
        if isinstance(value, dict) and not self._answer_control(frame):
            with self._changed:
                self._frames.append(frame)
                self._changed.notify_all()

    def _answer_control(self, frame: dict[str, Any]) -> bool:
        """Answer a control request that no step waits for."""
        if frame.get("type") != "control_request":
            return False
        subtype = frame.get("request", {}).get("subtype", "")
        waiting = self._manual.get(subtype, 0)
        if waiting:
            self._manual[subtype] = waiting - 1
            return False
        answer: dict[str, Any] | None = self.scenario["controls"].get(subtype)
        if subtype == "initialize":
            self._managed_settings = frame["request"].get("managedSettings")
        elif subtype == "get_settings" and answer is None:
            answer = {"payload": self._make_settings_answer()}
        if answer is None:
            answer = {"error": f"Unsupported control request subtype: {subtype}", "code": "unsupported_request"}
        if not answer.get("silent"):
            self._respond(frame.get("request_id", ""), **answer)
        return True

    def _make_settings_answer(self) -> dict[str, Any]:
        """Return what the CLI says of settings in which there is no mistake."""
        given = {"flagSettings": _flag_value(self.argv, "--settings"), "policySettings": self._managed_settings}
        if text := _flag_value(self.argv, "--managed-settings"):
            given["policySettings"] = text
        answer: dict[str, Any] = {"effective": {}, "sources": [], "applied": {}}
        for name, value in given.items():
            try:
                answer["sources"] += [{"source": name, "settings": _read_settings(value)}] if value else []
            except (OSError, ValueError):
                answer["errors"] = [{"file": value, "path": "", "message": "Invalid or malformed JSON"}]
        return answer

    def _respond(self, request_id: str, payload: Any = None, error: str | None = None, code: str | None = None) -> None:
        response: dict[str, Any] = {"subtype": "success" if error is None else "error", "request_id": request_id}
        if error is None:
            response["response"] = {} if payload is None else payload
        else:
            response["error"] = error
            if code:
                response["error_code"] = code
        self.write(json.dumps({"type": "control_response", "response": response}).encode() + b"\n")

    # verbs: output

    def write(self, data: bytes) -> None:
        """Write bytes to stdout, in pieces after `chunked`; ends the process if the reader has closed the pipe."""
        size, delay = self._chunk
        with self._writing:
            try:
                for at in range(0, len(data), size or len(data) or 1):
                    view = memoryview(data)[at : at + (size or len(data))]
                    while view:
                        view = view[os.write(1, view) :]
                    if delay:
                        time.sleep(delay)
            except BrokenPipeError:
                self.end(1)

    def raw(self, text: str) -> None:
        """Write text as bytes, in Latin-1: one character, one byte."""
        self.write(text.encode("latin-1"))

    def emit(self, *frames: Any, when: str | None = None, unless: str | None = None) -> None:
        """Write frames as lines; `when` and `unless` name a flag of the command line."""
        if (when and when not in self.argv) or (unless and unless in self.argv):
            return
        for frame in frames:
            line = json.dumps(self._mark(frame))
            for old, new in self._renames.items():
                line = line.replace(old, new)
            self.write(line.encode() + b"\n")
            if frame.get("type") == "result":
                self.failed = bool(frame.get("is_error"))
                while self._open_prompts:
                    self._write_lifecycle(self._open_prompts.pop(0), "completed")

    def _write_lifecycle(self, uuid: str, *states: str) -> None:
        for state in states:
            frame = {"type": "command_lifecycle", "command_uuid": uuid, "state": state}
            self.write(json.dumps(frame).encode() + b"\n")

    def _mark(self, frame: dict[str, Any]) -> dict[str, Any]:
        user_uuid = self.user.get("uuid")
        if not user_uuid or not self.scenario["mark"] or any(key in frame for key in UUID_FIELDS):
            return frame
        kind = frame.get("type")
        event: Any = frame.get("event")
        if kind in MARKED_TYPES or (isinstance(event, dict) and cast("Any", event).get("type") == "message_start"):
            return {**frame, "user_message_uuid": user_uuid, "user_message_uuids": [user_uuid]}
        if kind == "system" and frame.get("subtype") == "init":
            return {**frame, "user_message_uuids": [user_uuid]}
        return frame

    def repeat(self, count: int, frame: dict[str, Any]) -> None:
        line = json.dumps(frame).encode() + b"\n"
        batch = max(1, 65536 // len(line))
        for at in range(0, count, batch):
            self.write(line * min(batch, count - at))

    def chunked(self, size: int, delay: float = 0.0) -> None:
        self._chunk = (size, delay)

    def stderr(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def close_stdout(self) -> None:
        os.close(1)

    # verbs: input

    def expect(
        self,
        type: str = "user",  # noqa: A002 - the wire's name
        subtype: str | None = None,
        rename: str | None = None,
    ) -> dict[str, Any]:
        """Wait for a frame and return it. If stdin ends first, the process ends, as the real CLI does."""
        if not self.streaming:
            return self._expect_argument(type)
        with self._changed:
            while True:
                found = next((f for f in self._frames if _fits(f, type, subtype)), None)
                if found is not None:
                    break
                if self._eof:
                    self.end(self.failed)
                self._changed.wait()
            self._frames.remove(found)
        if type == "user":
            self.user = found
            if found.get("uuid") and self.scenario["lifecycle"]:
                self._open_prompts.append(found["uuid"])
                self._write_lifecycle(found["uuid"], "queued", "started")
            if rename and found.get("uuid"):
                self._renames[rename] = found["uuid"]
        elif type == "control_request":
            self.request = found
            if rename:
                self._renames[rename] = found.get("request_id", "")
        return found

    def _expect_argument(self, kind: str) -> dict[str, Any]:
        """Handle the argv form: the prompt is the last argument, and there is nothing else to wait for."""
        if kind != "user":
            return {}
        if self._prompted:
            self.end(self.failed)
        self._prompted = True
        self.user = {"type": "user", "message": {"role": "user", "content": self.argv[-1] if self.argv else ""}}
        return self.user

    def reply(self, payload: Any = None, error: str | None = None, code: str | None = None) -> None:
        self._respond(self.request.get("request_id", ""), payload, error, code)

    def ask(self, subtype: str, wait: bool = True, **body: Any) -> dict[str, Any]:
        """Send a control request; with `wait`, return the response to it."""
        self._asks += 1
        self.asked = f"fake_{self._asks}"
        request = {"subtype": subtype, **body}
        self.write(
            json.dumps({"type": "control_request", "request_id": self.asked, "request": request}).encode() + b"\n"
        )
        if not wait:
            return {}
        while True:
            response = self.expect("control_response").get("response", {})
            if not self.streaming or response.get("request_id") == self.asked:
                return response

    def cancel(self) -> None:
        self.emit({"type": "control_cancel_request", "request_id": self.asked})

    def finish(self) -> NoReturn:
        """Wait for the end of stdin and exit, as the real CLI does. A prompt that nothing answers is an error."""
        with self._changed:
            while True:
                if self.user and any(_fits(frame, "user", None) for frame in self._frames):
                    self.stderr(UNANSWERED)
                    self.end(1)
                if self._eof:
                    self.end(self.failed)
                self._changed.wait()

    def wait_eof(self) -> None:
        with self._changed:
            while not self._eof:
                self._changed.wait()

    # verbs: life

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang(self) -> NoReturn:
        while True:
            time.sleep(3600)

    def exit(self, code: int = 0) -> NoReturn:
        self.end(code)

    def end(self, code: int) -> NoReturn:
        """Exit at once, from any thread."""
        self.note(exit_code=int(code))
        os._exit(int(code))

    def kill(self, name: str = "SIGKILL") -> None:
        signal.signal(getattr(signal, name), signal.SIG_DFL) if name not in ("SIGKILL", "SIGSTOP") else None
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(3600)

    def ignore_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: self.note(signals="SIGTERM"))

    def spawn_grandchild(self, seconds: float = 60.0, own_group: bool = False) -> None:
        import subprocess

        code = f"import time; time.sleep({float(seconds)})"
        process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code], start_new_session=own_group)
        self.note(grandchildren=process.pid)

    # playing

    def play(self, steps: Iterable[list[Any]]) -> None:
        """Carry out steps, each a verb and its arguments by position and name."""
        for verb, args, kwargs in steps:
            getattr(self, verb)(*args, **kwargs)

    def run(self) -> NoReturn:
        """Play the whole scenario, then finish."""
        if self.scenario["reads"] and self.streaming:
            threading.Thread(target=self._read, daemon=True).start()
        source = self.scenario.get("source")
        if source:
            namespace: dict[str, Any] = {}
            exec(compile(source, "<scenario>", "exec"), namespace)  # noqa: S102 - the test's own code
            namespace[self.scenario["function"]](self)
        else:
            self.play(self.scenario["steps"])
            while self.scenario["forever"]:
                self.play(self.scenario["steps"])
        self.finish()


def _flag_value(argv: list[str], flag: str) -> str | None:
    for at, argument in enumerate(argv):
        if argument == flag and at + 1 < len(argv):
            return argv[at + 1]
        if argument.startswith(flag + "="):
            return argument[len(flag) + 1 :]
    return None


def _read_settings(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("{"):
        return json.loads(value)
    with open(value, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to load
        return json.load(file)


def _fits(frame: dict[str, Any], kind: str, subtype: str | None) -> bool:
    return frame.get("type") == kind and (subtype is None or frame.get("request", {}).get("subtype") == subtype)


def main(home: str) -> None:
    """Play the scenario in `home`."""
    with open(home + "/scenario.json", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to load
        scenario = json.load(file)
    if sys.argv[1:] in (["--version"], ["-v"]):
        sys.stdout.write(f"{scenario['version']} (Claude Code)\n")
        return
    record = f"{home}/calls/{time.time_ns():020d}-{os.getpid()}.jsonl"
    FakeChild(scenario, record).run()


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(sys.argv[0])))  # noqa: PTH100, PTH120 - pathlib is slow to load
