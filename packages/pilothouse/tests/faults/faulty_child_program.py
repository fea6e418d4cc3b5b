"""The child of the fault matrix: goes to one state of the protocol, and there does one wrong thing, once.

Plays inside of a fake CLI, whose verbs it is given, so it imports nothing but the standard library. A file says that
the wrong thing was done, and when; the next child, which finds that file, does everything right.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

SESSION: Final = "5e551017-0000-4000-8000-000000000001"
SERVER_INFO: Final[dict[str, Any]] = {"commands": [], "models": [], "account": {}, "current_permission_mode": "default"}
BIG: Final = 200_000  # bytes; more than a pipe holds
LIMIT: Final = 100_000  # what the host sets as `max_line_bytes`
GARBAGE: Final = (
    b"Starting up\n",
    b"\n \r\n",
    b"\xff\xfe\x00\n",
    b'{"type": "assistant", "mess\n',
    b"[1, 2]\nnull\n17\n",
    b'{"no": "type"}\n',
    b'{"type": 5}\n{"type": null}\n',
    b'{"type": "assistant", "message": 7}\n',
    b'{"type": "result", "subtype": ["success"], "is_error": "no", "num_turns": {}\n',
    b'{"type": "control_request"}\n',
    b'{"type": "control_cancel_request", "request_id": "never_asked"}\n',
    b"[" * 5_000 + b"\n",
)


def stop_reading(child: Any) -> None:
    """Its input stays open, and what is written there is never read."""
    child.kept = os.dup(0)
    silent, child.never_written = os.pipe()
    os.dup2(silent, 0)


def do_deaf(child: Any) -> None:
    stop_reading(child)
    filler = {"type": "system", "subtype": "status", "session_id": SESSION, "padding": "x" * 10_000}
    child.repeat(40, filler)
    child.hang()


def do_failed(child: Any) -> None:
    child.stderr("the disk is full\n")
    child.exit(1)


def do_closed(child: Any) -> None:
    child.close_stdout()
    child.hang()


def do_cut(child: Any) -> None:
    child.raw('{"type": "result", "subtype": "success", "is_error": false, "result": "fi')
    child.exit(0)


def do_oversize(child: Any) -> None:
    child.raw('{"type": "assistant", "padding": "' + "x" * BIG + '"}\n')


def do_garbage(child: Any) -> None:
    for data in GARBAGE:
        child.write(data)


def do_odd_answers(child: Any) -> None:
    pending = child.request.get("request_id", "")
    odd: list[Any] = [
        {"subtype": "success", "request_id": "never_asked", "response": {}},
        {"subtype": "error", "request_id": "never_asked", "error": "no"},
        {"subtype": "success", "response": {}},
        {"subtype": "success", "request_id": 7, "response": {}},
        {"subtype": "success", "request_id": None},
        {},
        "text",
        None,
        [pending],
    ]
    for response in odd:
        child.write(json.dumps({"type": "control_response", "response": response}).encode() + b"\n")
    child.write(b'{"type": "control_response"}\n')
    if child.first_request and child.first_request != pending:  # answered before
        for response in ({"subtype": "success", "response": {"twice": True}}, {"subtype": "error", "error": "twice"}):
            twice = {"type": "control_response", "response": {**response, "request_id": child.first_request}}
            child.write(json.dumps(twice).encode() + b"\n")


def do_orphaned(child: Any) -> None:
    child.spawn_grandchild(60)
    child.kill("SIGKILL")


FAULTS: Final[dict[str, Callable[[Any], object]]] = {
    "SIGKILL": lambda child: child.kill("SIGKILL"),
    "SIGTERM": lambda child: child.kill("SIGTERM"),
    "exit 0": lambda child: child.exit(0),
    "exit 1": do_failed,
    "output closed": do_closed,
    "cut last line": do_cut,
    "grandchild": do_orphaned,
    "silent": lambda child: child.hang(),
    "deaf": do_deaf,
    "oversize line": do_oversize,
    "garbage": do_garbage,
    "odd answers": do_odd_answers,
}


class Life:
    """One run of the child."""

    def __init__(self, child: Any) -> None:
        self.child = child
        self.mark = Path(child.env["FAULT_MARK"])
        spoiled = self.mark.exists()
        self.state = "" if spoiled else child.env["FAULT_STATE"]
        self.fault = child.env["FAULT"]
        child.first_request = ""

    def at(self, state: str) -> None:
        """Here the wrong thing is done, if this is the place for it."""
        if state != self.state:
            return
        self.state = ""
        self.mark.with_suffix(".new").write_text(repr(time.monotonic()))
        self.mark.with_suffix(".new").rename(self.mark)
        FAULTS[self.fault](self.child)

    def say(self, kind: str, **fields: Any) -> None:
        self.child.emit({"type": kind, "session_id": SESSION, **fields})

    def speak(self, *content: dict[str, Any]) -> None:
        self.say("assistant", message={"id": "m", "role": "assistant", "content": list(content)})

    def end(self, text: str, **fields: Any) -> None:
        self.say("result", **{"subtype": "success", "is_error": False, "num_turns": 1, "result": text, **fields})

    def run(self) -> None:
        child = self.child
        self.at("start")
        hello = child.expect("control_request", "initialize")
        self.hooks = [
            each["hookCallbackIds"][0] for each in (hello["request"].get("hooks") or {}).get("PreToolUse") or ()
        ]
        self.at("handshake")
        child.reply(SERVER_INFO)
        child.first_request = hello["request_id"]
        while True:
            self.turn()
            self.at("answered")
            self.at("idle")
            if self.state == "closing":
                child.wait_eof()
                self.at("closing")
                child.exit(0)
            if self.state == "setting":
                child.expect("control_request", "set_model")
                self.at("setting")
                child.reply({})

    def turn(self) -> None:
        self.child.expect("user")
        self.at("asked")
        self.say("system", subtype="init", claude_code_version="2.1.332")
        self.speak({"type": "text", "text": "part "})
        self.at("streaming")
        if self.state in ASKS:
            ASKS[self.state](self)
        if self.state == "interrupt":
            self.child.expect("control_request", "interrupt")
            self.at("interrupt")
            self.child.reply({})
            self.end("", subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")
            return
        self.speak({"type": "text", "text": "and the rest"})
        self.end("fine")

    def ask(self, state: str, subtype: str, **body: Any) -> None:
        self.child.ask(subtype, wait=False, **body)
        self.wait_until_it_runs()
        self.at(state)
        self.child.expect("control_response")

    def wait_until_it_runs(self) -> None:
        while not self.mark.with_suffix(".runs").exists():
            time.sleep(0.002)

    def use_tool(self) -> None:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "slow", "arguments": {}}}
        self.ask("tool", "mcp_message", server_name="tools", message=call)

    def use_hook(self) -> None:
        event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}, "tool_use_id": "t"}
        self.ask("hook", "hook_callback", callback_id=self.hooks[0], input=event, tool_use_id="t")

    def use_permission(self) -> None:
        self.ask("permission", "can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="t")

    def defer(self) -> None:
        name = "mcp__tools__slow"
        self.speak({"type": "tool_use", "id": "t", "name": name, "input": {}})
        event = {"hook_event_name": "PreToolUse", "tool_name": name, "tool_input": {}, "tool_use_id": "t"}
        self.child.ask("hook_callback", callback_id=self.hooks[0], input=event, tool_use_id="t")
        self.end("", stop_reason="tool_deferred", terminal_reason="tool_deferred")
        self.wait_until_it_runs()
        self.at("deferred")
        self.child.expect("user")
        self.say("system", subtype="init", claude_code_version="2.1.332")


ASKS: Final[dict[str, Callable[[Life], None]]] = {
    "tool": Life.use_tool,
    "hook": Life.use_hook,
    "permission": Life.use_permission,
    "deferred": Life.defer,
}


def play(child: Any) -> None:
    """What the fake CLI calls."""
    Life(child).run()
