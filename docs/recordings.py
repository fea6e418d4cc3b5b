"""Record the command in a terminal, as pictures that move: docs/terminal-*.svg.

python -m docs.recordings            # all of them; needs the CLI and the local model in the cache
python -m docs.recordings chat       # one

A person is played in a real terminal, with the real CLI. The model is scripted, but for the question of the demo. What
changes from run to run (directories, ids) is replaced, so that a recording changes only when the command does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from tests.terminal_screen import ENTER, ChatScreen, chatting

from pilothouse.provision.artifacts import cache_root
from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COLUMNS = 110
NARROW = 80
"""The columns of the picture on the front page, which phones show, too."""
CHAR_WIDTH, LINE_HEIGHT, FONT_SIZE = 7.8, 17, 13
SIDE, TOP = 14, 34
HOME = "/home/you/notes"
SESSION = "0b9f6d1e-3a55-4c5f-9d6a-0f6a2c1d7e11"
COLOURS = {
    "default": "#d6deeb", "black": "#4b5563", "red": "#f87171", "green": "#86efac", "brown": "#fcd34d",
    "yellow": "#fcd34d", "blue": "#93c5fd", "magenta": "#f0abfc", "cyan": "#67e8f9", "white": "#f3f4f6",
}  # fmt: skip
STYLE = """\
text{{font:{size}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.f{{visibility:hidden}}.last{{visibility:visible}}
@media (prefers-reduced-motion:no-preference){{.f{{animation:{whole:.2f}s step-end infinite}}
{frames}}}"""
_DEMO = re.compile(r"/tmp/pilothouse-demo-\w+")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Run(NamedTuple):
    """Characters of one look, from a column on."""

    column: int
    text: str
    colour: str
    is_bold: bool
    is_italic: bool


Line = tuple[Run, ...]


class Recorder:
    """What the screen showed, and for how long.

    Args:
        screen: the terminal.
        place: the directory that the recording calls `HOME`.
    """

    def __init__(self, screen: ChatScreen, place: Path) -> None:
        self.screen = screen
        self.frames: list[tuple[list[Line], float]] = []
        self.place = str(place)

    def keep(self, seconds: float = 1.2) -> None:
        """Keep what the screen shows now."""
        lines = [self._read_line(cells) for cells in self.screen.cells]
        while lines and not lines[-1]:
            lines.pop()
        self.frames.append((lines, seconds))

    def type(self, text: str) -> None:
        """Type a line, word by word, and send it."""
        for word in re.findall(r"\S+\s*", text):
            before = self.screen.raw
            self.screen.press(word)
            self.screen.until(lambda before=before: self.screen.raw != before, "what was typed")
            self.keep(0.25)
        self.screen.press(ENTER)

    def see(self, text: str, seconds: float = 1.2, times: int = 1) -> None:
        """Wait for a text, and keep the screen."""
        self.screen.shows(text, times)
        self.keep(seconds)

    def _read_line(self, cells: list[Any]) -> Line:
        found: list[Run] = []
        column = 0
        for look, group in groupby(cells, key=lambda cell: (_find_colour(cell), cell.bold, cell.italics)):
            text = "".join(cell.data for cell in group)
            shown = _DEMO.sub("/tmp/demo", _ID.sub(SESSION, text.replace(self.place, HOME)))
            if shown.strip():
                found.append(Run(column, shown.rstrip(), *look))
            column += len(text)
        return tuple(found)


def _find_colour(cell: Any) -> str:
    name = cell.bg if cell.reverse and cell.bg != "default" else cell.fg
    name = name.removeprefix("bright")
    return COLOURS.get(name) or (f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else COLOURS["default"])


# What a person does.


def record_demo(recorder: Recorder, model: ScriptedModel) -> None:
    """The demo: a question to the local model, then tools, a hook and a permission."""
    recorder.type("pilothouse demo --local")
    recorder.see("2. Tools", 2)
    for text in ("Bash ok", "find_place ok", "Write ok", "Bash error"):
        recorder.see(text)
    _end(recorder, "Everything worked")
    recorder.keep(3)


def record_chat(recorder: Recorder, model: ScriptedModel) -> None:
    """A conversation: formatted answers, commands, the cost."""
    model.on(
        "haiku", reply=[Text("Here it is:\n\n> **Grey** waves, slow and deep,\n> the lamp turns in the drizzle.\n")]
    )
    model.on("shorter", reply=[Text("- Lamp.\n- Drizzle.\n- `Deep` water.\n")])
    recorder.type("pilothouse chat")
    recorder.see("leaves")
    _say(recorder, "A haiku about the sea", "in the drizzle")
    _say(recorder, "Now shorter", "water")
    _say(recorder, "/cost", "all: ")
    recorder.keep(3)


def _end(recorder: Recorder, shown: str) -> None:
    """Wait until a command has ended."""
    recorder.screen.shows(shown)
    recorder.screen.until(lambda: recorder.screen.lines[-1] == "$", "the shell")
    recorder.keep(2)


def _say(recorder: Recorder, text: str, shown: str) -> None:
    recorder.screen.until(lambda: recorder.screen.at_prompt)
    recorder.type(text)
    recorder.screen.shows(shown)
    recorder.screen.until(lambda: recorder.screen.at_prompt)
    recorder.keep(2)


def record_permission(recorder: Recorder, model: ScriptedModel) -> None:
    """The dialog for permissions: a new file is allowed, a command is denied with a reason."""
    write = ToolUse("Write", {"file_path": str(Path(recorder.place) / "todo.md"), "content": "# To do\n- paint\n"})
    tidy = ToolUse("Bash", {"command": "rm -rf build && make all", "description": "Build again from nothing"})
    model.on("list", reply=Steps([Text("I write it down."), write], "It is in `todo.md`."))
    model.on("Build", reply=Steps([tidy], "Then I leave `build` as it is."))
    recorder.type("pilothouse chat")
    recorder.see("leaves")
    for text, keys, answer in (("Make a list", "o", "It is in"), ("Build it", "d only on Fridays", "Then I")):
        recorder.screen.until(lambda: recorder.screen.at_prompt)
        recorder.type(text)
        recorder.see("[d]eny", 2.5, times=1 if keys == "o" else 2)
        recorder.type(keys)
        recorder.screen.shows(answer)
        recorder.screen.until(lambda: recorder.screen.at_prompt)
        recorder.keep(2)
    recorder.keep(2)


def record_batch(recorder: Recorder, model: ScriptedModel) -> None:
    """A batch: prompts of a file, a journal, and a second run that only does what is new."""
    model.default = lambda request: f"About {request.last_user_text.removeprefix('Summarise ')}."
    names = ("the log", "the charts", "the letters")
    prompts = Path(recorder.place) / "prompts.jsonl"
    prompts.write_text("".join(f'{{"key": "{name[4:]}", "prompt": "Summarise {name}"}}\n' for name in names))
    recorder.type("cat prompts.jsonl")
    _end(recorder, "letters")
    recorder.type("pilothouse batch prompts.jsonl --journal runs.db -o out.jsonl")
    _end(recorder, "3 succeeded")
    with prompts.open("a") as file:
        file.write('{"key": "crew", "prompt": "Summarise the crew"}\n')
    recorder.type("pilothouse batch prompts.jsonl --journal runs.db -o out.jsonl")
    _end(recorder, "4 succeeded")
    recorder.type("wc -l out.jsonl")
    _end(recorder, "4 out.jsonl")
    recorder.keep(2)


PROGRAM = """\
import asyncio
import pilothouse as ph

async def main():
    query = ph.query("Which tests are slow?")
    async for text in query.text_stream():
        print(text, end="", flush=True)

asyncio.run(main())
"""


def record_first(recorder: Recorder, model: ScriptedModel) -> None:
    """The front page: a program that streams an answer, then a question of a chat before it runs a command."""
    model.on("slow", reply="Two of 214: `test_retry` sleeps for 3 s,\n`test_import` builds its index twice.\n")
    run = ToolUse("Bash", {"command": "python test_retry.py", "description": "Run the test"})
    model.on("Mend", reply=Steps([Text("A fake clock will do."), run], "Done: `test_retry` now takes 0.02 s."))
    (Path(recorder.place) / "ask.py").write_text(PROGRAM)
    (Path(recorder.place) / "test_retry.py").write_text("print('1 passed')\n")
    recorder.type("cat ask.py")
    _end(recorder, "asyncio.run")
    recorder.type("python ask.py")
    _end(recorder, "twice")
    recorder.type('pilothouse chat "Mend test_retry"')
    recorder.see("[d]eny", 2.5)
    recorder.type("o")
    recorder.screen.shows("0.02 s")
    recorder.screen.until(lambda: recorder.screen.at_prompt)
    recorder.keep(4)


RECORDINGS: dict[str, tuple[str, int, Callable[[Recorder, ScriptedModel], None]]] = {
    "demo": ("pilothouse demo", 36, record_demo),
    "chat": ("pilothouse chat", 30, record_chat),
    "permission": ("pilothouse chat: a tool needs permission", 30, record_permission),
    "batch": ("pilothouse batch", 16, record_batch),
    "first": ("pilothouse", 22, record_first),
}
COLUMNS_OF = {"first": NARROW}


@contextmanager
def open_terminal(rows: int, columns: int, model: ScriptedModel, cli: str) -> Generator[Recorder]:
    """A shell in an empty directory, in which `pilothouse` and `python` are these."""
    with tempfile.TemporaryDirectory(prefix="notes") as made:
        place = Path(made).resolve()
        programs = place.parent / f"{place.name}-bin"
        programs.mkdir()
        # A link to the command, which so knows itself; a link to the Python would be one without this environment.
        (programs / "pilothouse").symlink_to(Path(sys.executable).with_name("pilothouse"))
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        env = {name: value for name, value in model.env().items() if name != "CLAUDE_CONFIG_DIR"}
        env |= {"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "PS1": "$ ", "PILOTHOUSE_CLI": cli}
        env |= {"PILOTHOUSE_CACHE": str(cache_root()), "TMPDIR": "/tmp"}
        try:
            with chatting(["/bin/sh", "-i"], env, rows=rows, columns=columns, cwd=place) as screen:
                screen.shows("$")
                yield Recorder(screen, place)
        finally:
            shutil.rmtree(programs)


def record(name: str, cli: str) -> str:
    """Record one of `RECORDINGS`; gives the picture."""
    title, rows, play = RECORDINGS[name]
    columns = COLUMNS_OF.get(name, COLUMNS)
    with ScriptedModel() as model, open_terminal(rows, columns, model, cli) as recorder:
        play(recorder, model)
    return draw(title, recorder.frames, columns)


def draw(title: str, frames: list[tuple[list[Line], float]], columns: int = COLUMNS) -> str:
    """Draw a terminal that shows the frames one after the other, and only the last one where nothing may move."""
    rows = max(len(lines) for lines, _ in frames)
    width, height = columns * CHAR_WIDTH + 2 * SIDE, TOP + rows * LINE_HEIGHT + SIDE
    names: dict[Line, str] = {}
    for lines, _ in frames:
        for line in lines:
            names.setdefault(line, f"l{len(names)}")
    whole = sum(seconds for _, seconds in frames)
    shown, keys, begin = list[str](), list[str](), 0.0
    for number, (lines, seconds) in enumerate(frames):
        first, last = begin / whole * 100, (begin + seconds) / whole * 100
        begin += seconds
        ends = "" if number == len(frames) - 1 else f"{last:.2f}%{{visibility:hidden}}"
        start = "" if number == 0 else "0%{visibility:hidden}"
        keys.append(f"@keyframes k{number}{{{start}{first:.2f}%{{visibility:visible}}{ends}}}")
        keys.append(f".k{number}{{animation-name:k{number}}}")
        uses = "".join(
            f'<use href="#{names[line]}" y="{TOP + row * LINE_HEIGHT}"/>' for row, line in enumerate(lines) if line
        )
        kind = f"f k{number}" + (" last" if number == len(frames) - 1 else "")
        shown.append(f'<g class="{kind}">{uses}</g>')
    style = STYLE.format(size=FONT_SIZE, whole=whole, frames="\n".join(keys))
    defs = "\n".join(f'<g id="{name}">{"".join(map(_draw_run, line))}</g>' for line, name in names.items() if line)
    dots = "".join(f'<circle cx="{SIDE + 4 + 16 * at}" cy="16" r="5" fill="#475569"/>' for at in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n<defs>\n{defs}\n</defs>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0f172a"/>{dots}\n'
        f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" fill="#94a3b8">{escape(title)}</text>\n'
        + "\n".join(shown)
        + "\n</svg>\n"
    )


def _draw_run(run: Run) -> str:
    look = (' font-weight="bold"' if run.is_bold else "") + (' font-style="italic"' if run.is_italic else "")
    x, length = SIDE + run.column * CHAR_WIDTH, len(run.text) * CHAR_WIDTH
    place = f'x="{x:.1f}" y="{FONT_SIZE}" textLength="{length:.1f}"'
    return f'<text {place} fill="{run.colour}"{look}>{escape(run.text)}</text>'


def read_last_frame(picture: str) -> list[str]:
    """The lines that the last frame of a picture shows; numbers are 0."""
    tree = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    texts = {group.get("id"): " ".join(text.text or "" for text in group) for group in tree.iter(f"{space}g")}
    [last] = [group for group in tree.iter(f"{space}g") if "last" in group.get("class", "").split()]
    return [re.sub(r"\d+(\.\d+)?", "0", texts[use.get("href", "")[1:]]) for use in last]


def main(names: list[str]) -> None:
    """Record what is named, or everything."""
    finding = [sys.executable, "-m", "pilothouse", "install-cli", "--path"]
    cli = subprocess.run(finding, capture_output=True, text=True, check=True, env=os.environ).stdout.strip()
    for name in names or RECORDINGS:
        path = DOCS / f"terminal-{name}.svg"
        path.write_text(record(name, cli), "utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
