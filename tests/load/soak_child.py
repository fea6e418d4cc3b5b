"""The child of the soak: does what the prompt says. Plays inside of a fake CLI, so it imports the standard library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

SESSION: Final = "5e551017-0000-4000-8000-000000000002"


def say(child: Any, kind: str, **fields: Any) -> None:
    child.emit({"type": kind, "session_id": SESSION, **fields})


def speak(child: Any, text: str) -> None:
    say(child, "assistant", message={"id": "m", "role": "assistant", "content": [{"type": "text", "text": text}]})


def end(child: Any, text: str, **fields: Any) -> None:
    say(child, "result", **{"subtype": "success", "is_error": False, "num_turns": 1, "result": text, **fields})


def wait(child: Any) -> None:
    """Goes on until it is interrupted."""
    child._manual["interrupt"] = 1
    speak(child, "working")
    child.expect("control_request", "interrupt")
    child.reply({"still_queued": []})
    end(child, "", subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")


def ask(child: Any) -> None:
    """Asks for a hook, a permission and a tool, all at once, and counts the answers."""
    event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    child.ask("hook_callback", wait=False, callback_id=child.hook, input=event, tool_use_id="t")
    child.ask("can_use_tool", wait=False, tool_name="Bash", input={"command": "ls"}, tool_use_id="t")
    child.ask("mcp_message", wait=False, server_name="tools", message=call)
    answers = [child.expect("control_response")["response"] for _ in range(3)]
    end(child, " ".join(sorted(answer["subtype"] for answer in answers)))


def die(child: Any) -> None:
    """Is killed in the middle of its answer, and leaves a process that holds its output."""
    speak(child, "half of")
    child.spawn_grandchild(60)
    child.kill("SIGKILL")


def flood(child: Any) -> None:
    """Says more than anybody reads."""
    for _ in range(100):
        speak(child, "x" * 200_000)
    end(child, "done")


def stubborn(child: Any) -> None:
    """Complains at length, and ends neither by the end of its input nor by SIGTERM."""
    child.ignore_sigterm()
    for _ in range(200):
        child.stderr("y" * 999 + "\n")
    speak(child, "no")
    child.hang()


def fail(child: Any) -> None:
    """The API refused."""
    end(child, "API Error: 529", is_error=True, api_error_status=529)


DEEDS: Final[dict[str, Callable[[Any], None]]] = {
    "ask": ask,
    "die": die,
    "fail": fail,
    "flood": flood,
    "stubborn": stubborn,
    "wait": wait,
}


def serve(child: Any) -> None:
    """Answers prompts until there are no more."""
    hooks = child.expect("control_request", "initialize")["request"].get("hooks") or {}
    child.hook = next((entry["hookCallbackIds"][0] for entry in hooks.get("PreToolUse") or ()), "")
    child.reply({"commands": [], "models": [], "account": {}, "current_permission_mode": "default"})
    while True:
        content = child.expect("user")["message"]["content"]
        say(child, "system", subtype="init", claude_code_version="2.1.332")
        if content in DEEDS:
            DEEDS[content](child)
        else:
            speak(child, f"re: {content}")
            end(child, f"re: {content}")
