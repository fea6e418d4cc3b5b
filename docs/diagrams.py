"""Draws the pictures of the pages that code does not draw: who calls whom, what follows what, what runs where.

python docs/diagrams.py            # writes turn.svg, child.svg, hosts.svg and editors.svg beside this file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

HERE = Path(__file__).parent
WIDTH = 1000
FILLS = {"you": "#dcfce7", "ours": "#dbeafe", "cli": "#fef3c7", "else": "#f1f5f9", "bad": "#fee2e2"}
INK, SOFT = "#0f172a", "#64748b"
Tone: TypeAlias = Literal["you", "ours", "cli", "else", "bad"]
Side: TypeAlias = Literal["left", "right", "top", "bottom"]


class Box(NamedTuple):
    """Something that runs, or a state; lines of text, the first one large."""

    x: int
    y: int
    width: int
    height: int
    tone: Tone
    lines: tuple[str, ...]


class Arrow(NamedTuple):
    """From the side of a box to the side of another one, with a text beside its middle."""

    start: str
    leaves: Side
    end: str
    enters: Side
    text: str = ""
    is_dashed: bool = False


class Call(NamedTuple):
    """A row of a sequence: from one column to another, or a note over one if both are the same."""

    start: int
    end: int
    text: str
    is_answer: bool = False


COLUMNS: Sequence[tuple[str, Tone]] = (
    ("your program", "you"),
    ("pilothouse", "ours"),
    ("claude (the child)", "cli"),
    ("the model's API", "else"),
)
TURN: Sequence[Call] = (
    Call(0, 1, "query(prompt)"),
    Call(1, 2, "initialize: hooks, tools, system prompt"),
    Call(1, 2, "user message"),
    Call(2, 3, "request"),
    Call(3, 2, "text, tool_use Bash", is_answer=True),
    Call(2, 0, "stream events, assistant message", is_answer=True),
    Call(2, 1, "hook_callback: PreToolUse"),
    Call(1, 0, "your hook"),
    Call(0, 2, "allow, deny, ask, nothing", is_answer=True),
    Call(2, 2, "rules and permission_mode decide"),
    Call(2, 1, "can_use_tool, if nothing decided"),
    Call(1, 0, "your can_use_tool"),
    Call(0, 2, "Allow or Deny", is_answer=True),
    Call(2, 2, "the tool runs"),
    Call(2, 1, "mcp_message, if the tool is yours"),
    Call(1, 0, "your function"),
    Call(0, 2, "its result", is_answer=True),
    Call(2, 1, "hook_callback: PostToolUse"),
    Call(2, 3, "request with the tool's result"),
    Call(3, 2, "the answer", is_answer=True),
    Call(2, 0, "assistant message, result", is_answer=True),
)
CHILD: dict[str, Box] = {
    "found": Box(20, 20, 170, 60, "ours", ("found", "path, cache, or installed")),
    "started": Box(250, 20, 170, 60, "cli", ("started", "own process group, pipes")),
    "ready": Box(500, 20, 170, 60, "cli", ("ready", "after initialize")),
    "pool": Box(365, 140, 190, 60, "cli", ("in a pool", "booted, or warm (ready)")),
    "turn": Box(730, 20, 250, 60, "cli", ("in a turn", "messages out, requests both ways")),
    "idle": Box(730, 140, 250, 60, "cli", ("idle", "a session waits for its next query")),
    "ending": Box(480, 270, 500, 60, "ours", ("ending", "end of input, 0.3 s, SIGTERM to the group, 5 s, SIGKILL")),
    "gone": Box(480, 380, 500, 60, "else", ("gone", "waited for; no zombie, no descriptor, no private file")),
    "dead": Box(20, 270, 380, 60, "bad", ("died by itself", "CLIExitedError: exit code or signal, stderr")),
    "parent": Box(20, 380, 380, 60, "bad", ("your process was killed", "a watching shell ends the group")),
}
CHILD_ARROWS: Sequence[Arrow] = (
    Arrow("found", "right", "started", "left"),
    Arrow("started", "right", "ready", "left"),
    Arrow("started", "bottom", "pool", "left"),
    Arrow("pool", "right", "ready", "bottom", is_dashed=True),
    Arrow("ready", "right", "turn", "left", "prompt"),
    Arrow("turn", "bottom", "idle", "top", "result, next prompt"),
    Arrow("idle", "top", "turn", "bottom"),
    Arrow("idle", "bottom", "ending", "top", "close, cancel, timeout, the loop was left"),
    Arrow("ending", "bottom", "gone", "top"),
    Arrow("dead", "right", "ending", "left"),
    Arrow("parent", "right", "gone", "left"),
)
HOSTS: dict[str, Box] = {
    "program": Box(20, 20, 240, 60, "you", ("your program", "hooks, permissions, tools")),
    "browser": Box(20, 110, 240, 60, "you", ("a browser", "console: watch, allow, deny")),
    "serve": Box(380, 20, 260, 60, "ours", ("pilothouse serve, on machine A", "numbers and keeps all messages")),
    "remote": Box(740, 20, 240, 60, "cli", ("claude", "files and tools of machine A")),
    "first": Box(20, 230, 240, 60, "you", ("your program, on machine B", "session_store=store")),
    "local": Box(380, 230, 260, 60, "cli", ("claude", "files and tools of machine B")),
    "store": Box(20, 350, 240, 60, "else", ("session store", "SQLite, PostgreSQL, Redis, S3")),
    "second": Box(20, 470, 240, 60, "you", ("your program, on machine C", "session_store=store, resume=ID")),
    "resumed": Box(380, 470, 260, 60, "cli", ("claude --resume", "files and tools of machine C")),
}
HOST_ARROWS: Sequence[Arrow] = (
    Arrow("program", "right", "serve", "left", "WebSocket"),
    Arrow("browser", "right", "serve", "bottom", "REST, events"),
    Arrow("serve", "right", "remote", "left", "pipes"),
    Arrow("first", "right", "local", "left", "pipes"),
    Arrow("first", "bottom", "store", "top", "each entry; one holder at a time, by a lease"),
    Arrow("store", "bottom", "second", "top", "the whole conversation"),
    Arrow("second", "right", "resumed", "left", "pipes"),
)

EDITORS: dict[str, Box] = {
    "editor": Box(20, 20, 190, 60, "you", ("an editor", "Zed, JetBrains, Neovim")),
    "agent": Box(270, 20, 190, 60, "ours", ("pilothouse acp", "started by the editor")),
    "child": Box(560, 20, 190, 60, "cli", ("claude", "ends with the editor")),
    "next": Box(20, 120, 190, 60, "you", ("an editor", "today here, then there")),
    "link": Box(270, 120, 190, 60, "ours", ("pilothouse acp --remote", "ends with the editor")),
    "serve": Box(560, 120, 190, 60, "ours", ("pilothouse serve", "keeps all messages")),
    "far": Box(810, 120, 170, 60, "cli", ("claude", "goes on alone")),
}
EDITOR_ARROWS: Sequence[Arrow] = (
    Arrow("editor", "right", "agent", "left", "ACP"),
    Arrow("agent", "right", "child", "left", "pipes"),
    Arrow("next", "right", "link", "left", "ACP"),
    Arrow("link", "right", "serve", "left", "WebSocket"),
    Arrow("serve", "right", "far", "left", "pipes"),
)


def draw_text(x: float, y: float, text: str, *, size: int = 13, colour: str = INK, anchor: str = "middle") -> str:
    """Draw one line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def draw_box(box: Box) -> Iterator[str]:
    """Draw a box with its lines."""
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    yield f'<rect {place} rx="6" fill="{FILLS[box.tone]}" stroke="{SOFT}"/>'
    middle, top = box.x + box.width / 2, box.y + box.height / 2 - 9 * (len(box.lines) - 1) + 5
    for row, line in enumerate(box.lines):
        yield draw_text(middle, top + 19 * row, line, size=12 if row else 15, colour="#334155" if row else INK)


def find_side(box: Box, side: Side) -> tuple[float, float]:
    """Return the middle of a side."""
    x = {"left": box.x, "right": box.x + box.width}.get(side, box.x + box.width / 2)
    y = {"top": box.y, "bottom": box.y + box.height}.get(side, box.y + box.height / 2)
    return x, y


def draw_arrow(boxes: dict[str, Box], arrow: Arrow) -> Iterator[str]:
    """Draw an arrow: straight where it can be, else with corners; its text stands over or beside it."""
    (x1, y1), (x2, y2) = find_side(boxes[arrow.start], arrow.leaves), find_side(boxes[arrow.end], arrow.enters)
    leaves_upright, enters_upright = (side in ("top", "bottom") for side in (arrow.leaves, arrow.enters))
    if leaves_upright:
        path = f"M{x1:g},{y1:g}V{(y1 + y2) / 2:g}H{x2:g}V{y2:g}" if enters_upright else f"M{x1:g},{y1:g}V{y2:g}H{x2:g}"
    else:
        path = f"M{x1:g},{y1:g}H{x2:g}" + (f"V{y2:g}" if enters_upright else "")
    yield draw_path(path, is_dashed=arrow.is_dashed)
    if arrow.text and leaves_upright:
        yield draw_text(x2 + 8, (y1 + y2) / 2 + (16 if x1 != x2 else 4), arrow.text, size=12, anchor="start")
    elif arrow.text:
        yield draw_text((x1 + x2) / 2, y1 - 6, arrow.text, size=12)


def draw_path(path: str, *, is_dashed: bool = False) -> str:
    """Draw a line that ends with a head."""
    dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
    return f'<path d="{path}" fill="none" stroke="{INK}"{dashes} marker-end="url(#head)"/>'


def draw_sequence(columns: Sequence[tuple[str, Tone]], calls: Sequence[Call]) -> tuple[int, list[str]]:
    """Draw who calls whom, from top to bottom; give the height, too."""
    gap, top, row = WIDTH // len(columns), 92, 32
    places = [gap // 2 + gap * at for at in range(len(columns))]
    height = top + row * len(calls) + 10
    parts: list[str] = []
    for x, (name, tone) in zip(places, columns, strict=True):
        parts.append(f'<path d="M{x},60V{height - 14}" stroke="{SOFT}" stroke-dasharray="2 4"/>')
        parts += draw_box(Box(x - 95, 16, 190, 44, tone, (name,)))
    for at, call in enumerate(calls):
        y, x1, x2 = top + row * at, places[call.start], places[call.end]
        if call.start == call.end:
            parts += draw_box(Box(x1 - 118, y - 17, 236, 24, "else", ()))
            parts.append(draw_text(x1, y, call.text, size=12))
            continue
        parts.append(draw_path(f"M{x1},{y}H{x2 + (4 if x2 < x1 else -4)}", is_dashed=call.is_answer))
        # Over the first gap that the arrow crosses, so that no lifeline runs through the text.
        near = x1 + (gap // 2 if x2 > x1 else -gap // 2)
        parts.append(draw_text(near, y - 6, call.text, size=12))
    return height, parts


def make_picture(title: str, height: int, parts: Iterable[str]) -> str:
    """Make the file: a light ground, so that it reads on a dark page, too."""
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif">\n'
        f'<title>{escape(title)}</title>\n<defs>{head}<path d="M0,0L8,4L0,8z" fill="{INK}"/></marker></defs>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw_boxes(boxes: dict[str, Box], arrows: Sequence[Arrow]) -> tuple[int, list[str]]:
    """Draw boxes and the arrows between them; give the height, too."""
    parts = [part for arrow in arrows for part in draw_arrow(boxes, arrow)]
    parts += [part for box in boxes.values() for part in draw_box(box)]
    return max(box.y + box.height for box in boxes.values()) + 20, parts


def make_pictures() -> dict[str, str]:
    """Make all pictures, by the name of their file."""
    return {
        "turn.svg": make_picture("One turn: who calls whom", *draw_sequence(COLUMNS, TURN)),
        "child.svg": make_picture("The life of a child process", *draw_boxes(CHILD, CHILD_ARROWS)),
        "hosts.svg": make_picture("A session on one host, continued on another", *draw_boxes(HOSTS, HOST_ARROWS)),
        "editors.svg": make_picture("Sessions of an editor, here and on a host", *draw_boxes(EDITORS, EDITOR_ARROWS)),
    }


if __name__ == "__main__":
    for name, picture in make_pictures().items():
        (HERE / name).write_text(picture, "utf-8")
        print(f"wrote {name}")
