"""Answers about settings, where output is stored: without the keys of the user's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.transports import hide_settings
from pilothouse_testing import ScriptedModel
from pilothouse_testing.cassettes.recorder import Recorder

KEY = "plain-words-that-are-a-key"


def answer(**more: Any) -> bytes:
    user = {"source": "userSettings", "settings": {"env": {"ANY": KEY}, "permissions": {"deny": ["Bash"]}, **more}}
    response = {"subtype": "success", "request_id": "1", "response": {"effective": {}, "sources": [user]}}
    return json.dumps({"type": "control_response", "response": response}).encode()


def test_keys_are_masked_and_rules_stay() -> None:
    hidden = hide_settings(answer(apiKeyHelper=KEY))
    assert KEY.encode() not in hidden
    [source] = json.loads(hidden)["response"]["response"]["sources"]
    assert source["settings"]["permissions"] == {"deny": ["Bash"]}
    assert hide_settings(answer()[:-20]) == b""  # cut off


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not JSON",
        b'{"type":"assistant","text":"\\"control_response\\" \\"sources\\""}',
        b'{"type":"control_response","response":{"response":{"commands":["sources"]}}}',
        b'{"type":"control_response","response":5,"sources":1}',
        b'["control_response","sources"]',
    ],
)
def test_other_lines_stay(line: bytes) -> None:
    assert hide_settings(line) == line


def test_a_recording_keeps_no_key_of_the_user(real_cli: str, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    from pilothouse import sync

    scripted_model.default = "done"
    (scripted_model.home / ".claude").mkdir()
    (scripted_model.home / ".claude" / "settings.json").write_text(json.dumps({"env": {"ANY": KEY}}))
    path = tmp_path / "run.jsonl"
    result = sync.query(
        "go",
        cli=real_cli,
        cwd=scripted_model.home,
        env=scripted_model.env(max_retries=0),
        inherit_env=False,
        settings={"permissions": {"deny": ["Bash"]}},
        transport=Recorder(path),
    ).result()
    assert result.text == "done"
    assert isinstance(result, ph.QueryResult)
    assert b"flagSettings" in path.read_bytes()
    assert KEY.encode() not in path.read_bytes()
