"""Standard error: its tail, its lines, and no secret in either."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.options.secrets import MASK, Redactor, secret_values
from pilothouse.transports.stderr import MAX_LINE_CHARS, StderrLog

KEY = "planted-0123456789-secret"


def log(*values: str, **more: object) -> tuple[StderrLog, list[str]]:
    lines: list[str] = []
    return StderrLog(lambda: Redactor(values), lines.append, **more), lines  # type: ignore[arg-type]


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("ANTHROPIC_API_KEY", KEY, KEY),
        ("anthropic_auth_token", KEY, KEY),
        ("AWS_SECRET_ACCESS_KEY", KEY, KEY),
        ("AWS_BEARER_TOKEN_BEDROCK", KEY, KEY),
        ("DB_PASSWORD", KEY, KEY),
        ("MYAPIKEY", KEY, KEY),
        ("PLAIN", f"https://x/?api_key={KEY}&a=b", KEY),
        ("PLAIN", f"https://x/?X-Amz-Signature={KEY}", KEY),
        ("GH", "ghp_0123456789abcdef", "ghp_0123456789abcdef"),
        ("GITHUB_PAT", KEY, KEY),
        ("HTTPS_PROXY", f"http://me:{KEY}@proxy:80", KEY),
        ("ANTHROPIC_CUSTOM_HEADERS", f"X-A: {KEY}\nX-B: other-secret", "other-secret"),
    ],
)
def test_secret_variables(name: str, value: str, secret: str) -> None:
    assert secret in secret_values({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/bin:/bin"),
        ("PWD", "/home/somebody"),
        ("PASSWORD_FILE", "/run/secrets/x"),
        ("MONKEY_ISLAND", "everything"),
        ("MAX_THINKING_TOKENS", "1000000"),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "128000"),
        ("API_KEY", "short"),
        ("KEYBOARD_LAYOUT", "german-qwertz"),
        ("SSH_AUTH_SOCK", "/tmp/agent.1"),
        ("FEATURE_TOKEN", "enabled"),
        ("HTTPS_PROXY", "http://proxy:80"),
        ("ANTHROPIC_BASE_URL", "http://[bad:x@y"),
    ],
)
def test_ordinary_variables(name: str, value: str) -> None:
    assert secret_values({name: value}) == ()


def test_longer_secrets_are_replaced_whole() -> None:
    redactor = Redactor(["abcdef", "abcdefghij"])
    assert redactor.redact("x abcdefghij y abcdef") == f"x {MASK} y {MASK}"
    assert Redactor([]).redact("text") == "text"
    assert Redactor(['a"quoted\\value']).redact(r'{"key": "a\"quoted\\value"}') == f'{{"key": "{MASK}"}}'
    assert Redactor(["first line\nsecond line"]).redact("second line") == MASK


@pytest.mark.requirement("E71")
def test_lines_and_tail() -> None:
    stderr, lines = log()
    for data in (b"one\ntw", b"o\r\n\nthr", "ée".encode()[:-1], b"\xff\n", b"last"):
        stderr.feed(data)
    assert lines == ["one", "two", "", "thré\ufffd"]
    stderr.finish()
    stderr.finish()
    assert lines[4:] == ["last"]
    assert stderr.tail() == "one\ntwo\r\n\nthré\ufffd\nlast"


@pytest.mark.requirement("E76")
@given(st.data())
def test_no_secret_passes_wherever_it_is_cut(data: st.DataObject) -> None:
    text = data.draw(
        st.lists(st.sampled_from([KEY, "x", "planted-", "secret", "\n", "y" * 50]), max_size=30).map("".join)
    )
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    limit = data.draw(st.integers(10, 200))
    stderr, lines = log(KEY, tail=limit)
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        stderr.feed(raw[start:end])
    tail = stderr.tail()
    stderr.finish()
    assert KEY not in "\n".join(lines)
    assert "\n".join(lines) == text.replace(KEY, MASK).removesuffix("\n")
    assert len(tail) <= limit
    assert text.replace(KEY, MASK).endswith(tail)


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("offset", range(-len(KEY) - 2, 3))
def test_no_secret_passes_in_an_endless_line(offset: int) -> None:
    stderr, lines = log(KEY)
    raw = b"." * (MAX_LINE_CHARS + 1 + offset) + KEY.encode() + b"." * MAX_LINE_CHARS * 3
    for start in range(0, len(raw), MAX_LINE_CHARS + 1):
        stderr.feed(raw[start : start + MAX_LINE_CHARS + 1])
    stderr.finish()
    joined = "".join(lines)
    assert len(lines) > 1
    assert joined == raw.decode().replace(KEY, MASK)


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("offset", range(-60, 3))
def test_a_key_recognised_by_shape_is_redacted_in_an_endless_line(offset: int) -> None:
    stderr, lines = log()
    key = "sk-ant-api03-0123456789abcdef0123456789abcdef"
    raw = b"." * (MAX_LINE_CHARS + 1 + offset) + key.encode() + b"." * MAX_LINE_CHARS * 3
    for start in range(0, len(raw), MAX_LINE_CHARS + 1):
        stderr.feed(raw[start : start + MAX_LINE_CHARS + 1])
    stderr.finish()
    assert len(lines) > 1
    assert "".join(lines) == raw.decode().replace(key, MASK)


def test_the_kept_part_is_bounded() -> None:
    stderr, _ = log(tail=1000)
    for n in range(10_000):
        stderr.feed(b"%09d\n" % n)
    assert stderr.tail() == "".join(f"{n:09d}\n" for n in range(9900, 10_000))
    assert stderr._length < 3000


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_callback_that_raises_is_logged_once(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def fail(line: str) -> None:
        calls.append(line)
        raise error(line)

    stderr = StderrLog(lambda: Redactor(()), fail)
    stderr.feed(b"a\nb\nc\n")
    assert calls == ["a", "b", "c"]
    assert len(caplog.records) == 1


def test_ctrl_c_in_a_callback_passes() -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StderrLog(lambda: Redactor(()), interrupt).feed(b"a\n")


def test_lines_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stderr = StderrLog(lambda: Redactor([KEY]))
    with caplog.at_level(logging.DEBUG, logger="pilothouse.stderr"):
        stderr.feed(f"my key is {KEY}\n".encode())
    assert [record.getMessage() for record in caplog.records] == [f"my key is {MASK}"]
