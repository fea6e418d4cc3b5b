"""The form of a cassette: lines of the wire to entries and back, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.errors import CassetteError
from pilothouse.options.secrets import MASK, Redactor
from pilothouse_testing import Cassette
from pilothouse_testing.cassettes.format import (
    decode_frame,
    decode_wire_line,
    encode_entry,
    encode_header,
    encode_wire_line,
    read_cassette,
    redact_line,
)

HEADER = encode_header("1.0", "2026-01-01T00:00:00Z")
ENTRY = b'{"t":0.5,"conn":1,"dir":"out","msg":{"type":"result"}}\n'

ODD_LINES = [
    b"",
    b"{}",
    b'{"a": 1}',
    b'  {"a": 1}  ',
    b'{"a": 1}\r',
    b"no json",
    b'"a string"',
    b"7",
    b'{"a": NaN}',
    b'{"a": "\\ud800"}',
    b'{"a": "\xff"}',
    b"\x00\xff",
    '{"a": "\u2028ä"}'.encode(),
    b'{"_raw": "mine"}',
    b'{"_base64": "AAAA"}',
    b'{"_raw": "x", "more": 1}',
    b'{"a": 1}{"b": 2}',
]


def read_back(line: bytes, *, is_open: bool = False) -> bytes:
    data = HEADER + encode_entry(0.0, 1, "out", encode_wire_line(line, is_open=is_open))
    assert data.count(b"\n") == 2
    assert all(json.loads(part) for part in data.splitlines())
    [entry] = read_cassette(data, "c").connections[0].entries
    return entry.data


@pytest.mark.parametrize("line", ODD_LINES)
def test_every_line_comes_back_as_it_was(line: bytes) -> None:
    assert read_back(line) == line + b"\n"
    assert read_back(line, is_open=True) == line


@given(st.binary(max_size=60).filter(lambda data: b"\n" not in data), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_come_back_as_they_were(line: bytes, is_open: bool) -> None:
    assert read_back(line, is_open=is_open) == line + (b"" if is_open else b"\n")


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
)
@settings(max_examples=200, deadline=None)
def test_any_json_comes_back_as_it_was(value: object) -> None:
    line = json.dumps({"type": "x", "value": value}).encode()
    assert read_back(line) == line + b"\n"
    assert encode_wire_line(line) == line or b"NaN" in line or b"Infinity" in line or b"\\ud" in line


def test_a_plain_line_stands_in_the_file_as_it_is() -> None:
    line = b'{"b":1, "a": "\xc3\xa4"}'
    assert line in encode_entry(0.0, 1, "in", encode_wire_line(line))


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", None, "the file is empty"),
        (b"\n\n", None, "the file is empty"),
        (HEADER, None, "holds no connection"),
        (b'{"cassette":2,"more":1}\n' + ENTRY, 1, "is a cassette of version 2; this pilothouse reads version 1"),
        (b'{"cassette":"x"}\n' + ENTRY, 1, "of version x"),
        (b'{"cassette":\n' + ENTRY, 1, "the header is damaged"),
        (HEADER + b"what\n" + ENTRY, 2, "not a line of a cassette"),
        (HEADER + ENTRY + b'{"t":1,"dir":"sideways","msg":{}}\n' + ENTRY, 3, "not a line of a cassette"),
        (HEADER + ENTRY + b'{"t":1,"dir":"out"}\n' + ENTRY, 3, "not a line of a cassette"),
        (HEADER + ENTRY + b'{"t":1,"dir":"out","msg":{"a":\n', 3, "not a line of a cassette"),
        (b"[1]\n", 1, "not a line of a cassette"),
        (b"# A page\n\nof text\n", 1, "not a line of a cassette"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: bytes, line: int | None, words: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(CassetteError) as caught:
        Cassette.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(path), line)
    if line is not None:
        assert f", line {line}: " in str(caught.value)


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(CassetteError, match=f"cannot be read: {reason}"):
            Cassette.load(path)


def test_a_last_line_that_a_crash_has_cut_is_left_out() -> None:
    cassette = read_cassette(HEADER + ENTRY + ENTRY[:30], "c")
    assert cassette.is_truncated
    assert len(cassette.connections[0].entries) == 1
    assert not read_cassette(HEADER + ENTRY, "c").is_truncated
    assert not read_cassette(HEADER + ENTRY[:-1], "c").is_truncated  # whole, but for its newline


def test_a_recording_without_a_header_is_one_connection(transcripts: list[Path]) -> None:
    for path in transcripts:
        cassette = Cassette.load(path)
        assert (cassette.version, len(cassette.connections), cassette.is_truncated) == (0, 1, False)
        spoken = [entry for entry in cassette.connections[0].entries if entry.direction == "out"]
        assert all(entry.data.endswith(b"\n") for entry in spoken)


def test_connections_are_told_apart_and_in_order() -> None:
    second, first = ENTRY.replace(b'"conn":1', b'"conn":12'), ENTRY.replace(b'"conn":1', b'"conn":3')
    cassette = read_cassette(HEADER + second + first + second, "c")
    assert [(c.number, len(c.entries)) for c in cassette.connections] == [(3, 1), (12, 2)]
    assert [entry.line for entry in cassette.connections[1].entries] == [2, 4]


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (b'{"a": "x sk-secret-1 y"}', "sk-secret-1"),
        (b'{"a": 123456789, "b": [null, true, 1.5]}', "123456789"),
        (b'{"a": {"sk-secret-1": "sk-secret-1"}}', "sk-secret-1"),
        (b'{"a": "line\\nbreak\\"quoted\\""}', 'break"quoted"'),
        (b"no json sk-secret-1 \xff", "sk-secret-1"),
    ],
)
def test_secrets_go_and_json_stays_json(line: bytes, secret: str) -> None:
    hidden = redact_line(line, Redactor([secret]))
    assert secret.encode() not in hidden
    assert json.dumps(secret)[1:-1].encode() not in hidden
    assert MASK.encode() in hidden
    assert (decode_frame(line, typed=False) is None) == (decode_frame(hidden, typed=False) is None)
    assert redact_line(b"nothing here", Redactor([secret])) == b"nothing here"


def test_the_code_of_a_login_goes_though_nobody_knows_it_before() -> None:
    sent = {"subtype": "claude_oauth_callback", "authorizationCode": "abc-123_x", "state": "s"}
    assert json.loads(redact_line(json.dumps(sent).encode(), Redactor([]))) == {**sent, "authorizationCode": MASK}
    back = {"subtype": "mcp_oauth_callback_url", "callbackUrl": "http://localhost:1/back?code=abc-123_x&state=s"}
    assert b"abc-123_x" not in redact_line(json.dumps(back).encode(), Redactor([]))


def test_damaged_base64_is_an_empty_line() -> None:
    assert decode_wire_line(b'{"_base64": "!"}') == b"\n"
