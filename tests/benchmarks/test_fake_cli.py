"""The fake CLI of the benchmarks, in both languages: what it sends, when it asks, how many questions are open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.environment import build_fake_cli
from benchmarks.scenarios import STAMP

HELLO, FRAME, RESULT = b'{"type":"system"}\n', b'{"type":"assistant"}\n', b'{"type":"result"}\n'
INITIALIZE = b'{"type": "control_request", "request_id": "req_1", "request": {"subtype": "initialize"}}\n'
PROMPT = b'{"type":"user","message":{"role":"user","content":"hi"}}\n'
HANDSHAKE = b'{"type":"control_request","request_id":"once"}\n'
QUESTION = b'{"type":"control_request","request_id":"q-10000000","request":{"id":10000000}}\n'
ANSWER = b'{"type":"control_response","response":{"subtype": "success"}}\n'
REFUSAL = b'{"type":"control_response","response":{"subtype": "error"}}\n'

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(params=["c", "python"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts the fake CLI; `frame` and `question` are parts of its scenario, the rest are its variables."""
    if request.param == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, kind = build_fake_cli(compiler=None if request.param == "c" else "")
    assert kind == request.param

    def run(*, frame: bytes = b"", question: bytes = b"", **variables: int) -> subprocess.Popen[bytes]:
        for name, content in {"hello": HELLO, "frame": frame, "question": question, "result": RESULT}.items():
            (tmp_path / name).write_bytes(content)
        given = {f"BENCH_{name.upper()}": str(value) for name, value in variables.items()}
        env = {**os.environ, "BENCH_SCENARIO": str(tmp_path), **given}
        pipe = subprocess.PIPE
        return subprocess.Popen([path], env=env, stdin=pipe, stdout=pipe, stderr=pipe)

    return run


def test_both_fake_clis_send_the_same(start: Start) -> None:
    count = 100_003  # more than fits into one batch of either, and not a multiple of it
    with start(frame=FRAME, count=count) as fake:
        output, problems = fake.communicate(INITIALIZE + PROMPT, timeout=30)
    assert fake.returncode == 0, problems
    answer, rest = output.split(b"\n", 1)
    assert json.loads(answer)["response"]["request_id"] == "req_1"
    assert rest == HELLO + FRAME * count + RESULT


def test_a_slow_turn_says_when_each_frame_was_written(start: Start) -> None:
    frame = b'{"text":"at %s"}\n' % STAMP.encode()
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with start(frame=frame, count=2, slowly=3, pause=1000) as fake:
        output, _ = fake.communicate(PROMPT.replace(b"hi", b"slowly") + PROMPT, timeout=30)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    lines = output.splitlines(keepends=True)
    assert [lines[0], *lines[4:]] == [HELLO, RESULT, HELLO, frame, frame, RESULT]
    times = [int(json.loads(line)["text"].removeprefix("at ")) for line in lines[1:4]]
    assert before <= times[0]
    assert times[2] <= after
    assert all(later - earlier >= 1000 for earlier, later in pairwise(times))


def send(fake: subprocess.Popen[bytes], line: bytes) -> None:
    assert fake.stdin is not None
    fake.stdin.write(line)
    fake.stdin.flush()


def test_a_question_is_asked_when_the_one_before_it_was_answered(start: Start) -> None:
    printed: list[bytes] = []
    with start(question=HANDSHAKE + QUESTION, calls=3) as fake:
        assert fake.stdout is not None
        send(fake, PROMPT)
        assert fake.stdout.readline() == HELLO
        for _ in range(4):
            printed.append(fake.stdout.readline())
            send(fake, ANSWER)
        assert fake.stdout.readline() == RESULT
        assert fake.communicate()[0] == b""

    assert printed[0] == HANDSHAKE
    asked = [json.loads(line) for line in printed[1:]]
    numbers = [question["request"]["id"] for question in asked]
    assert len(set(numbers)) == 3
    assert [question["request_id"] for question in asked] == [f"q-{number}" for number in numbers]


@pytest.mark.parametrize(("calls", "ahead"), [(5, 1), (5, 3), (2, 7)])
def test_so_many_questions_wait_at_a_time(start: Start, calls: int, ahead: int) -> None:
    with start(question=QUESTION, calls=calls, ahead=ahead) as fake:
        assert fake.stdout is not None
        for _ in range(2):  # a second turn is like the first
            send(fake, PROMPT)
            assert fake.stdout.readline() == HELLO
            output = [fake.stdout.readline() for _ in range(min(ahead, calls))]
            for _ in range(calls - 1):
                send(fake, ANSWER)
                if len(output) < calls:
                    output.append(fake.stdout.readline())
            assert len({json.loads(line)["request_id"] for line in output}) == calls
            send(fake, ANSWER)
            assert fake.stdout.readline() == RESULT
        assert fake.communicate()[0] == b""


def test_an_answer_that_refuses_ends_the_run(start: Start) -> None:
    with start(question=QUESTION) as fake:
        output, problems = fake.communicate(PROMPT + REFUSAL, timeout=30)
    assert fake.returncode != 0
    assert b"was refused an answer" in problems
    assert RESULT not in output
