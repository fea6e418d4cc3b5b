"""The console's JavaScript: types, and how events become a timeline, checked by the node that pyright brings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from npm_packages import fetch_package, find_node
from places import CONSOLE_FILES, TRANSCRIPTS

from pilothouse.options import Options
from pilothouse_policy import effective_policy

pytestmark = pytest.mark.browser

TYPESCRIPT = ("typescript", "5.9.3")
STRICT = ("--strict", "--noUncheckedIndexedAccess", "--noUnusedLocals", "--noUnusedParameters", "--noImplicitReturns")
WHERE = (
    "--noEmit", "--allowJs", "--checkJs", "--target", "es2023", "--module", "es2022", "--moduleResolution",
    "bundler",
)  # fmt: skip


def test_the_types_hold() -> None:
    compiler = fetch_package(*TYPESCRIPT) / "bin" / "tsc"
    files = [str(path) for path in CONSOLE_FILES.glob("*.js")]
    libraries = ("--lib", "es2023,dom,dom.iterable,dom.asynciterable")
    command = [find_node()[0], str(compiler), *WHERE, *STRICT, *libraries, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=CONSOLE_FILES)
    assert (done.returncode, done.stdout) == (0, "")


FOLD = """
import { foldEvent, listChanges, makeTimeline } from "./fold.js";
import { readFileSync } from "node:fs";
const timeline = makeTimeline();
const messages = JSON.parse(readFileSync(0, "utf-8"));
for (const message of messages) foldEvent(timeline, message);
const show = ({ kind, text, done, failed, name, input, task, tone, images, became, children = [] }) =>
  ({ kind, text, done, failed, name, input, task, tone, images: images.length, became, children: children.map(show) });
const { todos, model, context, cost, spent, running, needsLogin } = timeline;
const changes = listChanges(timeline).map((change) => change.file);
const items = timeline.items.map(show);
console.log(JSON.stringify({ items, todos, model, context, cost: cost + spent, running, needsLogin, changes }));
"""


@pytest.fixture
def fold(tmp_path: Path) -> Any:
    """Folds messages in node; gives what the timeline then shows."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for name in ("fold.js", "text.js"):
        shutil.copy(CONSOLE_FILES / name, tmp_path / name)
    (tmp_path / "run.mjs").write_text(FOLD)

    def run(*messages: dict[str, Any]) -> Any:
        command = [find_node()[0], str(tmp_path / "run.mjs")]
        done = subprocess.run(
            command, input=json.dumps(messages), capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    return run


def told(words: str, outcome: str) -> dict[str, Any]:
    return {"type": "system", "subtype": "steering", "steering": words, "outcome": outcome, "title": f"title {words}"}


def test_words_for_a_turn_say_what_became_of_them(fold: Any) -> None:
    said = [{"type": "user", "uuid": words, "message": {"content": words}} for words in ("one", "two", "three")]
    items = fold(said[0], told("one", "taken"), told("two", "next_turn"), said[1], said[2], told("none", "returned"))[
        "items"
    ]
    assert [(item["text"], item.get("became")) for item in items] == [
        ("one", "taken"),
        ("two", "next_turn"),
        ("three", ""),
        ("Not sent because the turn had ended: title none", None),
    ]


def stream(event: dict[str, Any], agent: str | None = None) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": agent}


def start(message: str, agent: str | None = None) -> dict[str, Any]:
    return stream({"type": "message_start", "message": {"id": message}}, agent)


def block(index: int, **content: Any) -> dict[str, Any]:
    return stream({"type": "content_block_start", "index": index, "content_block": content})


def delta(index: int, **change: Any) -> dict[str, Any]:
    return stream({"type": "content_block_delta", "index": index, "delta": change})


def assistant(message: str, *content: dict[str, Any], agent: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"id": message, "role": "assistant", "model": "m", "content": list(content), "usage": {"input_tokens": 7}}
    return {"type": "assistant", "message": body, "parent_tool_use_id": agent, **more}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def call(name: str, ident: str = "t1", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": ident, "name": name, "input": given}


def outcome(text: Any, ident: str = "t1", *, is_error: bool = False, **more: Any) -> dict[str, Any]:
    return user([{"type": "tool_result", "tool_use_id": ident, "content": text, "is_error": is_error}], **more)


def said(timeline: Any) -> list[tuple[str, str]]:
    return [(item["kind"], item["text"]) for item in timeline["items"]]


TEXT = {"type": "text", "text": "Hello there"}


def test_pieces_become_the_message_that_follows_them(fold: Any) -> None:
    pieces = [start("a"), block(0, type="text", text=""), delta(0, text="Hel"), delta(0, text="lo")]
    assert said(fold(*pieces)) == [("text", "Hello")]
    timeline = fold(*pieces, assistant("a", TEXT), delta(0, text="late"))
    assert said(timeline) == [("text", "Hello there")]
    assert timeline["items"][0]["done"]
    assert (timeline["model"], timeline["context"]) == ("m", 7)
    assert said(fold(assistant("a", TEXT))) == [("text", "Hello there")]  # without pieces


def test_a_message_that_is_written_anew_replaces_its_first_try(fold: Any) -> None:
    first = [start("a"), block(0, type="text", text=""), delta(0, text="I beg")]
    assert said(fold(*first, start("b"), block(0, type="text", text=""), delta(0, text="Again"))) == [("text", "Again")]


def test_a_turn_that_ends_early_keeps_what_was_written(fold: Any) -> None:
    cut = [user("go"), start("a"), block(0, type="text", text=""), delta(0, text="half"), block(1, **call("Bash"))]
    for end in ({"type": "system", "subtype": "init"}, {"type": "system", "subtype": "query_failed", "error": "gone"}):
        timeline = fold(*cut, end)
        assert said(timeline)[:2] == [("prompt", "go"), ("text", "half")]
        assert timeline["items"][2]["failed"]
        assert not timeline["running"]
    assert said(timeline)[-1] == ("notice", "gone")


def test_messages_that_come_twice_are_shown_once(fold: Any) -> None:
    messages = [user("go", uuid="1"), assistant("a", TEXT, uuid="2")]
    assert said(fold(*messages, *messages)) == [("prompt", "go"), ("text", "Hello there")]


def test_what_sub_agents_do_stands_below_their_call(fold: Any) -> None:
    timeline = fold(
        assistant("a", call("Task", description="look")),
        {"type": "system", "subtype": "task_started", "task_id": "x", "tool_use_id": "t1"},
        outcome("launched; agentId: x"),
        assistant("b", call("Bash", "t2", command="ls"), agent="t1"),
        outcome("files", "t2", parent_tool_use_id="t1"),
        assistant("b", TEXT, agent="t1"),
        {"type": "system", "subtype": "task_updated", "task_id": "x", "patch": {"status": "completed"}},
        {"type": "system", "subtype": "task_notification", "task_id": "x", "status": "completed", "summary": "seen"},
    )
    [agent] = timeline["items"]
    assert (agent["task"], agent["text"], agent["done"]) == ("completed", "seen", True)
    assert [(child["kind"], child["text"]) for child in agent["children"]] == [
        ("tool", "files"),
        ("text", "Hello there"),
    ]


def test_outcomes_changes_todos_and_pictures(fold: Any) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    todos = [{"content": "one", "status": "completed"}]
    timeline = fold(
        user([picture, {"type": "text", "text": "what is this?"}]),
        assistant("a", call("Edit", file_path="/a", old_string="x", new_string="y")),
        outcome("done"),
        assistant("b", call("Write", "t2", file_path="/b", content="z")),
        outcome("<tool_use_error>no</tool_use_error>", "t2", is_error=True),
        assistant("c", call("TodoWrite", "t3", todos=todos)),
        assistant("d", call("Read", "t4", file_path="/p.png")),
        outcome([picture], "t4"),
    )
    assert timeline["changes"] == ["/a"]
    assert timeline["todos"] == todos
    assert [item["images"] for item in timeline["items"]] == [1, 0, 0, 0, 1]
    assert (timeline["items"][2]["text"], timeline["items"][2]["failed"]) == ("no", True)


def test_costs_of_several_processes_add_up(fold: Any) -> None:
    ended = {"type": "result", "subtype": "success", "is_error": False}
    assert (
        fold({**ended, "total_cost_usd": 2}, {**ended, "total_cost_usd": 3}, {**ended, "total_cost_usd": 1})["cost"]
        == 4
    )
    failed = fold({**ended, "is_error": True, "result": "API Error: 500"})
    assert (said(failed), failed["items"][0]["failed"]) == ([("result", "API Error: 500")], True)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "x"},
        {"type": "__proto__"},
        {"type": "assistant"},
        {"type": "result"},
        {"type": "stream_event"},
        {"type": "system"},
        {"type": "system", "subtype": "constructor"},
        user([None, 5, {"type": "tool_result"}]),
        assistant("a", {"type": "new"}, {"type": "text"}),
        stream({"type": "content_block_delta", "index": 9}),
    ],
)
def test_messages_of_another_form_do_no_harm(fold: Any, message: dict[str, Any]) -> None:
    timeline = fold(message, assistant("z", TEXT))
    assert said(timeline)[-1] == ("text", "Hello there")


@pytest.mark.parametrize("name", ["04_tool_use_bash", "05b_partial_thinking", "06_two_turns_stream_json"])
def test_recordings_of_the_real_cli_fold_the_same_with_and_without_pieces(fold: Any, name: str) -> None:
    file = TRANSCRIPTS / f"{name}.ndjson"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    messages = [line["msg"] for line in lines if line["dir"] == "out"]
    whole = [message for message in messages if message.get("type") != "stream_event"]
    folded = said(fold(*messages))
    assert "text" in dict(folded)
    assert folded == said(fold(*whole))


def test_a_host_without_a_key_says_what_to_do(fold: Any) -> None:
    words = "Not logged in · Please run /login"
    told = assistant("a", {"type": "text", "text": words}, error="authentication_failed")
    closing = {"type": "result", "subtype": "success", "is_error": True, "result": words}
    (text, notice) = fold(told, closing)["items"]
    assert text["text"] == "Not logged in"
    assert (notice["kind"], notice["failed"]) == ("result", True)
    for way in ("neither a key nor a login", "ANTHROPIC_API_KEY", "Log in", "pilothouse chat --local"):
        assert way in notice["text"]
    assert said(fold(assistant("a", {"type": "text", "text": words})))[0] == ("text", words)  # the model may write it


def test_only_a_turn_without_a_key_needs_a_login(fold: Any) -> None:
    def closing(words: str, **more: Any) -> dict[str, Any]:
        return {"type": "result", "subtype": "success", "result": words, **more}

    none = closing("Not logged in · Please run /login", is_error=True)
    assert [fold(*rows)["needsLogin"] for rows in ((none,), (none, closing("Hi")), (closing("Not logged in"),))] == [
        True,
        False,
        False,
    ]


COSTS = """
import { readFileSync } from "node:fs";
const source = readFileSync(process.argv[2], "utf-8");
const [body] = /export function formatCost[\\s\\S]*?\\n}/.exec(source);
const formatCost = new Function(`${body.replace("export", "return")}`)();
console.log(JSON.stringify([null, 0, 0.00004, 0.00042, 0.0042, 0.01, 1.256].map(formatCost)));
"""


def test_costs_have_two_digits_at_least() -> None:
    command = [find_node()[0], "--input-type=module", "-", str(CONSOLE_FILES / "ui.js")]
    done = subprocess.run(command, input=COSTS, capture_output=True, text=True, timeout=60, check=True)
    shown = json.loads(done.stdout)
    assert shown == ["", "$0.00", "< $0.0001", "$0.00042", "$0.0042", "$0.01", "$1.26"]


PLAIN_WORDS = """
import { toPlainWords } from "./text.js";
import { readFileSync } from "node:fs";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).map(toPlainWords)));
"""


def test_a_policy_is_not_told_in_the_words_of_python(tmp_path: Path) -> None:
    policy = effective_policy(
        Options(allowed_tools=["Bash(git:*)"], disallowed_tools=["WebSearch"], permission_mode="acceptEdits")
    )
    texts = [*policy.unseen, *policy.notes, *policy.warnings, *(row.why for row in policy.rows)]
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(CONSOLE_FILES / "text.js", tmp_path)
    (tmp_path / "run.mjs").write_text(PLAIN_WORDS)
    command = [find_node()[0], str(tmp_path / "run.mjs")]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=60, check=True)
    shown = json.loads(done.stdout)
    assert len(set(shown)) > 8
    assert "disallowed tools: WebSearch" in shown
    assert not [text for text in shown if re.search(r"\b[a-z]+_[a-z_]+\b|=\[|=True|=\{|`|no function", text)]


REVEAL = """
import { reveal } from "./text.js";
import { readFileSync } from "node:fs";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).map(reveal)));
"""


def test_nothing_in_a_revealed_text_is_invisible(tmp_path: Path) -> None:
    unseen = [
        *(0x00, 0x07, 0x0D, 0x1B, 0x7F, 0x85, 0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180E),
        *(0x200B, 0x200D, 0x200E, 0x2028, 0x2029, 0x202A, 0x202E, 0x2060, 0x2066, 0x2069, 0x206F, 0x2800, 0x3164),
        *(0xD800, 0xE000, 0xFE00, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0xE0001, 0xE0041, 0xE0100, 0xE01EF, 0x10FFFF),
    ]
    plain = "ls -la\t| x\r\n\n äöü שלום こんにちは\u3000“é” e\u0301 👍 \N{WARNING SIGN}\ufe0f"
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(CONSOLE_FILES / "text.js", tmp_path)
    (tmp_path / "run.mjs").write_text(REVEAL)
    given = [plain, *(f"a{chr(code)}b" for code in unseen), 5, None, {"toString": "\u202e"}]
    command = [find_node()[0], str(tmp_path / "run.mjs")]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=True)
    same, *shown = json.loads(done.stdout)
    assert same == plain
    assert shown == [*(f"a\\u{{{code:x}}}b" for code in unseen), "5", "", '{\n  "toString": "\\u{202e}"\n}']
