"""Output that a host stores: without keys in answers about settings, or without answers, and unchanged otherwise."""

from __future__ import annotations

import json

import pytest

from pilothouse.transports import hide_settings
from pilothouse_host.stored_output import StoredMessages, StoredOutput

REQUEST = b'{"type":"control_request","request_id":"1","request":{"subtype":"get_settings"}}\n'
USER = {"source": "userSettings", "settings": {"env": {"ANY": "plain-words-that-are-a-key"}}}
RESPONSE = {"subtype": "success", "request_id": "1", "response": {"effective": {}, "sources": [USER]}}
ANSWER = json.dumps({"type": "control_response", "response": RESPONSE}).encode()


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_stored_output_is_the_same_but_for_the_answer(size: int) -> None:
    before, after = b'{"type":"system"}\nnoise', b'\n{"type":"result"}\nthe rest'
    stored = StoredOutput()
    assert stored.feed(b"half a li") == b"half a li"
    stored.note_input(b'{"type":"user"}\n' + REQUEST)
    output = before + b"\n" + ANSWER + after
    found = b"".join(stored.feed(output[at : at + size]) for at in range(0, len(output), size)) + stored.feed(b"")
    assert found == before + b"\n" + hide_settings(ANSWER) + after


LINES = (
    b'{"type":"system"}', ANSWER, b'{"type":"control_response","response":{"authUrl":"https://a.example"}}',
    b'{"type":"control_request"}', b'noise {"type":"control_response"}', b"",
    b'{"type":"user","text":"{\\"type\\":\\"control_response\\"}"}', b'{"type":"contr',
)  # fmt: skip


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_output_of_a_child_of_the_host_is_without_answers(size: int, end: bytes) -> None:
    output = b"\n".join(LINES) + end
    stored = StoredMessages()
    found = b"".join(stored.feed(output[at : at + size]) for at in range(0, len(output), size)) + stored.feed(b"")
    assert (
        found == b"\n".join(line for line in LINES if not line.startswith((b'{"type":"control_response', ANSWER))) + end
    )
