"""`pilothouse serve`: flags, the token, where it listens."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path

import pytest
from served_host import TOKEN, Program

from pilothouse.errors import UsageError
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import ServeRequest
from pilothouse_host import Host, HostSettings, check_token, find_default_journal, find_token, listen, make_app
from pilothouse_remote.messages import is_loopback
from pilothouse_testing import FakeCLI


def test_flags() -> None:
    assert parse(["serve"]) == ServeRequest()
    words = "--host ::1 --port 9 --public --root a --root b --env X_A --name n --origin https://o --token-file t"
    line = f"serve {words} --journal j --cli c --max-sessions 3 --idle 4 --drain 5 --keep-days 0.5"
    asked = parse([*line.split()])
    limits = "--client a=f --max-permission-mode plan --no-client-programs --no-client-mcp --no-client-settings"
    more = parse(["serve", *limits.split(), "--managed-settings", "m", "--verbatim-prompts", "--allow-flag", "brief"])
    assert more == ServeRequest(
        clients=("a=f",),
        max_permission_mode="plan",
        no_client_programs=True,
        no_client_mcp=True,
        no_client_settings=True,
        managed_settings="m",
        verbatim_prompts=True,
        allow_flags=("brief",),
    )
    places = {"roots": ("a", "b"), "env": ("X_A",), "names": ("n",), "origins": ("https://o",), "cli": "c"}
    numbers = {"max_sessions": 3, "idle": 4.0, "drain": 5.0, "keep_days": 0.5}
    where = {"host": "::1", "port": 9, "public": True, "token_file": "t", "journal": "j"}
    assert asked == ServeRequest(**where, **places, **numbers)  # type: ignore[arg-type]
    line = "serve --openai --anthropic --map a=opus --map b=haiku --max-requests 2"
    endpoints = parse([*line.split()])
    assert endpoints == ServeRequest(openai=True, anthropic=True, maps=("a=opus", "b=haiku"), max_requests=2)


def test_the_token_is_shown_once_and_only_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeCLI() as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            assert served.request("GET", "/v1/sessions")[0] == 200
            assert served.request("GET", "/v1/sessions", token="wrong")[0] == 401
            code, output = program.end(signal.SIGTERM)
        assert (code, TOKEN in output) == (0, False)
        monkeypatch.setattr("served_host.TOKEN", "")  # none is given: one is made
        made = Program(tmp_path, fake.path)
        with made as served:
            assert made.process.stderr is not None
            token = made.process.stderr.readline().split()[-1]
            assert served.request("GET", "/v1/sessions", token=token)[0] == 200
            code, output = made.end(signal.SIGTERM)
        assert (code, output.count(token)) == (0, 0)  # the line above was the only one
    assert capsys.readouterr().out == ""


def test_limits_and_tokens_of_the_command(tmp_path: Path) -> None:
    token = tmp_path / "ann"
    token.write_text("the-token-of-ann-0123456789")
    token.chmod(0o600)
    (tmp_path / "managed.json").write_text('{"permissions": {"deny": ["Bash"]}}')
    limits = ("--max-permission-mode", "default", "--no-client-mcp", "--no-client-settings", "--no-client-programs")
    more = ("--managed-settings", str(tmp_path / "managed.json"), "--verbatim-prompts", "--allow-flag", "brief")
    with FakeCLI() as fake:
        program = Program(tmp_path, fake.path, *limits, *more, "--client", f"ann={token}")
        with program as served:
            ann = token.read_text()
            for options, words in (
                ({"permission_mode": "acceptEdits"}, "up to 'default'"),
                ({"mcp_servers": {"s": {"command": "x"}}}, "no MCP servers"),
                ({"settings": {"model": "x"}}, "no settings"),
                ({"plugins": ["."]}, "no plugins"),
                ({"verbatim_prompts": False}, "every prompt as it is"),
            ):
                _, answer = served.request("POST", "/v1/sessions", {"options": options}, token=ann)
                assert words in answer["error"]["message"], answer
            assert (
                served.request("POST", "/v1/sessions", {"options": {"extra_args": {"brief": None}}}, token=ann)[0]
                == 201
            )
            program.end(signal.SIGTERM)
        at_the_start, call = fake.calls
        assert "--brief" in call.argv
        for each in (at_the_start, call):  # the first child tells whether the settings can be taken
            [managed] = [argument for argument in each.argv if argument.startswith("--managed-settings=")]
            settings = json.loads(managed.partition("=")[2])
            assert settings["permissions"]["deny"][0] == "Bash"
            assert settings["allowManagedHooksOnly"] is settings["allowManagedMcpServersOnly"] is True


def test_where_tokens_come_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert find_token(str(file), {}) == (TOKEN, False)
    assert find_token(None, {"PILOTHOUSE_HOST_TOKEN": TOKEN}) == (TOKEN, False)
    first, made = find_token(None, {})
    assert made
    assert first != find_token(None, {})[0]
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other users may read the token file"):
        find_token(str(file), {})
    with pytest.raises(UsageError, match="cannot be read"):
        find_token(str(tmp_path / "none"), {})
    for bad in ("short", "x" * 15, "é" * 20, "with a blank in it", "with\nline" * 4):
        with pytest.raises(UsageError, match="at least 16"):
            check_token(bad)


def test_where_it_listens() -> None:
    for address in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert is_loopback(address)
    for address in ("0.0.0.0", "::", "192.168.1.4", "pilot.example", ""):
        assert not is_loopback(address)
        with pytest.raises(UsageError, match="give --public"):
            listen(address, 0)
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="cannot listen on 127"):
        listen("127.0.0.1", taken.getsockname()[1])
    with listen("0.0.0.0", 0, public=True) as everywhere:
        assert everywhere.getsockname()[1]


def test_settings_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="max_sessions: expected a number greater than 0"):
        HostSettings(journal=tmp_path / "j", max_sessions=0)
    with pytest.raises(UsageError, match="is not a directory"):
        HostSettings(journal=tmp_path / "j", roots=(str(tmp_path / "none"),))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_default_journal() == tmp_path / "pilothouse" / "host.sqlite"
    monkeypatch.chdir(tmp_path)
    assert HostSettings(journal=tmp_path / "j").resolve_roots() == (str(tmp_path.resolve()),)
    assert make_app.__doc__


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "give --public"),
        (("--root", "/no/where"), "is not a directory"),
        (("--token-file", "/no/where"), "cannot be read"),
        (("--journal", "/dev/null/x"), "cannot be opened"),
        (("--max-permission-mode", "root"), "expected one of plan"),
        (("--managed-settings", "/no/where"), "cannot be read"),
        (("--managed-settings", "/dev/null"), "cannot be read"),
        (("--allow-flag=--x",), "without dashes"),
        (("--map", "a=opus"), "it needs --openai or --anthropic"),
        (("--openai", "--map", "a"), "expected NAME=MODEL"),
        (("--openai", "--map", "a=gpt"), "leads to 'gpt'"),
        (("--client", "ann"), "expected NAME=FILE"),
        (("--client", "ann=/no/where"), "cannot be read"),
        (("--origin", "console.example.com"), "scheme and host"),
        (("--origin", "https://console.example.com/"), "without a path"),
        (("--origin", "*"), "scheme and host"),
        (("--name", "https://host.example.com"), "without scheme and port"),
        (("--name", "host.example.com:8750"), "without scheme and port"),
    ],
)
def test_starts_that_fail(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    code, output = Program(tmp_path, "/nowhere", *arguments).end()
    assert (code in (1, 2), words in output, "Traceback" in output) == (True, True, False), output


def test_a_file_that_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "host.sqlite").write_text("something else, and longer than the header of a database " * 20)
    code, output = Program(tmp_path, "/nowhere").end()
    assert (code, "is not a journal" in output) == (2, True), output
    assert stat.S_ISREG((tmp_path / "host.sqlite").stat().st_mode)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_block_of_a_host_raises_the_error_of_the_program_itself(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="of the program"):
        async with Host(HostSettings(journal=tmp_path / "host.sqlite", roots=(str(tmp_path),))):
            raise KeyError("of the program")
