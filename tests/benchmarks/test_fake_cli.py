"""The fake CLI of the benchmarks keeps as many questions open as it is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

PROMPT = b'{"type":"user","message":{"role":"user","content":"hi"}}\n'
QUESTION = b'{"type":"control_request","request_id":"q-10000000","request":{"id":10000000}}\n'
ANSWER = b'{"type":"control_response","response":{"subtype": "success"}}\n'
RESULT = b'{"type":"result"}\n'


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize(("calls", "ahead"), [(5, 1), (5, 3), (2, 7)])
def test_so_many_questions_wait_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, calls: int, ahead: int
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.environment import build_fake_cli

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, _ = build_fake_cli(compiler=None if language == "c" else "")
    for name, content in {"hello": b"", "frame": b"", "question": QUESTION, "result": RESULT}.items():
        (tmp_path / name).write_bytes(content)
    given = {"BENCH_SCENARIO": str(tmp_path), "BENCH_CALLS": str(calls), "BENCH_AHEAD": str(ahead)}
    with subprocess.Popen(
        [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **given}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):  # a second turn is like the first
            process.stdin.write(PROMPT)
            process.stdin.flush()
            output = [process.stdout.readline() for _ in range(min(ahead, calls))]
            for _ in range(calls - 1):
                process.stdin.write(ANSWER)
                process.stdin.flush()
                if len(output) < calls:
                    output.append(process.stdout.readline())
            assert len({json.loads(line)["request_id"] for line in output}) == calls
            process.stdin.write(ANSWER)
            process.stdin.flush()
            assert process.stdout.readline() == RESULT
        process.stdin.close()
        assert process.stdout.read() == b""
