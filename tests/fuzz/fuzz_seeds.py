"""Where inputs come from: recordings of the real CLI, texts, inputs that once broke something, and changes of those.

Owns seeds and the mutations of the short run; atheris brings better ones. Knows nothing of the code that is fuzzed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from places import TRANSCRIPTS

CORPUS: Final = Path(__file__).parent / "corpus"
LONGEST: Final = 8_000  # bytes of a seed; those that are shorter find more in the same time
PROMPT: Final = b"00000000-0000-4000-8000-00000000feed"

TEXTS: Final = (
    "Hello <b>world</b> & more, a < b",
    '<tool_use><tool_name>weather</tool_name><arguments>{"city": "Paris", "days": 3}</arguments></tool_use>',
    "<tool_use id='x1'>\n<tool_name>weather</tool_name>\n<parameter name=\"city\">Paris</parameter></tool_use> done",
    "<tool_use-k7><tool_name>nest</tool_name><arguments><items>1</items><items>2</items></arguments></tool_use-k7>",
    "```xml\n<tool_use-k7><tool_name>weather</tool_name></tool_use-k7>\n```\n`<tool_use>`\n> <tool_use>\n",
    "<thinking>Let me see <tool_use></thinking><text>So</text><tool_result>made up</tool_result>",
    "<tool_use><tool_name>mcp__files__Read</tool_name><path><![CDATA[a<b]]></path><!-- c --><all>true</all></tool_use>",
    '<ns:tool_use><ns:invoke name="weather"><ns:parameter name="city">&lt;&#65;&amp;</ns:parameter></ns:invoke>',
    '<tool_use><tool_name>nest</tool_name><arguments>{"items": [1, 2.5, {"a": null}], "map": {"k": [',
    '<TOOL_USE ><tool_name> weather </tool_name><arguments>\ufeff{"city": "\\ud800"}</arguments></ TOOL_USE>',
)
ODD_LINES: Final = (
    b'\n \r\n\xff\xfe\x00\n{"type": "assistant", "mess\n[1, 2]\nnull\n17\n{"no": "type"}\n{"type": 5}\n',
    b'{"type": "control_request"}\n{"type": "control_response", "response": {"request_id": "ph_1", "subtype": 3}}\n',
    b'{"type":"result","subtype":"success","is_error":NaN,"total_cost_usd":1e999,"result":"\\ud800"}\n',
    b'{"type": "system", "subtype": "init", "tools": ' + b"[" * 300 + b"]" * 300 + b"}\n",
    b'{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"B","input":{}}}\n'
    * 2,
)
WORDS: Final = (
    '"type":', '"subtype":', '"assistant"', '"result"', '"user"', '"system"', '"stream_event"', '"control_request"',
    '"control_response"', '"request_id":', '"uuid":', '"message":', '"content":', '"tool_use"', '"thinking"', "null",
    '"is_error":', "true", "1e999", "-0", "\\ud800", "{}", "[]", "\r\n", "\n", '{"', '"}', "\u2028", "<tool_use>",
    "</tool_use>", "<tool_use-k7>", "</tool_use-k7>", "<tool_name>", "</tool_name>", "<arguments>", "</arguments>",
    "<parameter name=", "</parameter>", "<![CDATA[", "]]>", "<!--", "-->", "<thinking>", "</thinking>", "<tool_result>",
    "&amp;", "&#x", "```", "`", "> ", "\ufeff",
)  # fmt: skip


def _read_recording(path: Path) -> tuple[list[bytes], bytes]:
    """What the CLI said in a recording after its handshake, and the uuid of the first prompt."""
    entries = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    sent = [entry["msg"] for entry in entries if entry["dir"] == "in" and isinstance(entry["msg"], dict)]
    prompt = next((str(m.get("uuid") or "") for m in sent if m.get("type") == "user"), "").encode()
    output = [_line(entry["msg"]) for entry in entries if entry["dir"] == "out"]
    at = next((n + 1 for n, line in enumerate(output) if b'"control_response"' in line), 0)
    return [line.replace(prompt, PROMPT) if prompt else line for line in output[at:]], prompt


def _line(message: Any) -> bytes:
    raw = message.get("_raw") if isinstance(message, dict) else None
    if raw is None:
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"
    return str(raw).encode("utf-8", "surrogatepass").rstrip(b"\n") + b"\n"


def _kind(line: bytes) -> tuple[bytes, ...]:
    """What tells one kind of line from another."""
    return tuple(re.findall(rb'"(?:type|subtype)": ?"(\w+)"', line)[:6])


@cache
def _recorded() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """One line of each kind, and conversations in which each kind of line comes once at most."""
    lines: dict[tuple[bytes, ...], bytes] = {}
    talks: list[bytes] = []
    for path in sorted(TRANSCRIPTS.glob("*.ndjson")):
        output = [line for line in _read_recording(path)[0] if len(line) < LONGEST]
        once = {_kind(line): line for line in output}
        new = once.keys() - lines.keys()
        lines.update({kind: once[kind] for kind in sorted(new)})
        talk = b"".join(once.values())
        if new and len(talk) < 3 * LONGEST:
            talks.append(talk)
    return tuple(lines.values()), tuple(talks)


@cache
def seeds(target: str) -> tuple[bytes, ...]:
    """Inputs that the changes begin with; those that once broke something are among them."""
    lines, talks = _recorded()
    bodies = {
        "connection": (*lines, *talks, *ODD_LINES),
        "decoder": (*lines, *ODD_LINES),
        "framing": (*ODD_LINES, *lines[:5], b"a\r\nb\rc\r\r\n\n", b"x" * 70 + b"\n" + b"y" * 64 + b"\r\n"),
        "jsontext": (*lines, bytes(range(256))),
        "query": (*talks, *ODD_LINES),
        "xml": tuple(text.encode("utf-8", "surrogatepass") for text in TEXTS),
    }[target]
    headed = tuple(bytes((number * 7 % 256, number * 13 % 256)) + body for number, body in enumerate(bodies))
    return (*headed, *(path.read_bytes() for path in regressions(target)))


def regressions(target: str) -> list[Path]:
    """Inputs that once broke something."""
    return sorted(path for path in (CORPUS / target).glob("*") if path.is_file())


def mutants(target: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` inputs; the same ones for the same `seed`."""
    random, known = Random(seed), seeds(target)
    for _ in range(count):
        data = bytearray(random.choice(known))
        for _ in range(random.choice((1, 1, 2, 4, 8))):
            _change(random, data, known)
        yield bytes(data)


def _change(random: Random, data: bytearray, known: tuple[bytes, ...]) -> None:
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.choice((1, 1, 4, 30, 300)))
    match random.randrange(7):
        case 0:
            data[at:end] = bytes(random.randrange(256) for _ in range(end - at))
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = random.choice(WORDS).encode()
        case 3:
            data[at:end] = random.choice(WORDS).encode()
        case 4:
            data[at:at] = data[at:end] * random.choice((1, 2, 50))
        case 5:
            other = random.choice(known)
            start = random.randrange(len(other))
            data[at:end] = other[start : start + random.choice((5, 50, 500))]
        case _:
            data[at:] = data[at:][: random.randrange(len(data) + 1 - at) if at < len(data) else 0]
