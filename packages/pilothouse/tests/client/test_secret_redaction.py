"""Secrets stay in the environment of the child and in private files: all that can be printed has no key. (E76)"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import re
import stat
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.client.settings_check import SentSettings
from pilothouse.options import PolicyWarning, render, render_child_env
from pilothouse_testing import FakeCLI, ScriptedModel, Steps, ToolUse, frames

# Queries are made to see how they are checked, and not run.
UNUSED = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), UNUSED]

KEYS = {
    name: f"planted.{name}.0123456789abcdef"  # the shape says nothing
    for name in (
        "api",
        "auth",
        "oauth",
        "env",
        "server-env",
        "server-header",
        "url",
        "settings",
        "inherited",
        "pass",
        "jwt",
        "dsn",
        "webhook",
        "argument",
        "bound-argument",
        "server-password",
        "server-query",
        "base-url",
        "managed",
        "helper",
        "json-settings",
    )
} | {"shape": "ghp_planted0123456789abcdef"}
PLANTED = re.compile("|".join(map(re.escape, KEYS.values())))


def planted(fake_path: str = "auto", **more: Any) -> ph.Options:
    """Options with a key wherever one may stand."""
    return ph.Options(
        cli=fake_path,
        api_key=KEYS["api"],
        auth_token=KEYS["auth"],
        oauth_token=KEYS["oauth"],
        base_url=f"https://me:{KEYS['base-url']}@x.invalid",
        env={
            "MY_SERVICE_TOKEN": KEYS["env"],
            "HTTPS_PROXY": f"http://me:{KEYS['url']}@proxy:1",
            "DB_PASS": KEYS["pass"],
            "MY_JWT": KEYS["jwt"],
            "SENTRY_DSN": KEYS["dsn"],
            "SLACK_WEBHOOK_URL": KEYS["webhook"],
            "GH": KEYS["shape"],
        },
        mcp_servers={
            "local": ph.StdioServer(
                command="x",
                args=["--token", KEYS["argument"], f"--api-key={KEYS['bound-argument']}"],
                env={"TOKEN": KEYS["server-env"]},
            ),
            "far": ph.HttpServer(url="https://x.invalid", headers={"Authorization": f"Bearer {KEYS['server-header']}"}),
            "other": ph.HttpServer(url=f"https://me:{KEYS['server-password']}@x.invalid/?key={KEYS['server-query']}"),
        },
        settings={"env": {"OTHER_TOKEN": KEYS["settings"]}, "apiKeyHelper": KEYS["helper"]},
        managed_settings={"env": {"X_TOKEN": KEYS["managed"]}},
        **more,
    )


def clean(text: object, where: str) -> None:
    found = sorted({name for name, key in KEYS.items() if key in str(text)})
    assert not found, f"{where} shows the keys {found}: {text!s:.2000}"


class Records(logging.Handler):
    """Every record of a test, formatted with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {self.format(record)} {record.args!r}")


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """Whatever a test does, no record at any level has a key."""
    monkeypatch.setenv("SOME_API_KEY", KEYS["inherited"])
    records, root = Records(), logging.getLogger()
    before = root.level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    yield records
    root.removeHandler(records)
    root.setLevel(before)
    clean("\n".join(records.lines), "the log")


def error_text(error: BaseException) -> str:
    """All that a traceback, a log or a debugger with reprs would show of an error."""
    shown = ["".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())]
    seen: BaseException | None = error
    while seen is not None:
        shown += [repr(seen), str(seen), repr(vars(seen)), repr(getattr(seen, "__notes__", ""))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(shown)


@pytest.mark.requirement("E76")
def test_what_can_be_looked_at_shows_no_key() -> None:
    options = planted()
    agent = ph.Agent(options)
    query = agent.query("go")
    session = agent.session()
    invocation = render(options, os.environ)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ph.Agent(options, allowed_tools=["Read"], permission_mode="bypassPermissions")
    for where, value in {
        "Options": options,
        "Agent": agent,
        "Query": query,
        "Query.options": query.options,
        "Session": session,
        "Invocation": invocation,
        "Invocation.files": invocation.files,
        "Invocation.argv": invocation.argv,
        "explain": agent.options.explain(),
        "a row of explain": list(agent.options.explain().values()),
        "to_cli_args": options.to_cli_args(),
        "servers": options.mcp_servers,
        "SentSettings": SentSettings("settings", options.settings),
        "warnings": [str(warning.message) for warning in caught],
    }.items():
        clean(value, where)
        clean(repr(value), f"repr of {where}")
    assert any(issubclass(warning.category, PolicyWarning) for warning in caught)
    # That this test looks for what is there:
    assert PLANTED.search(json.dumps(render_child_env(options, os.environ)))
    assert PLANTED.search(invocation.files[0].content.decode())


TAKES_SETTINGS: dict[str, Any] = {
    "query": lambda given: ph.query("x", **given),
    "session": lambda given: ph.session(**given),
    "configure": lambda given: ph.configure(**given),
    "Agent": lambda given: ph.Agent(**given),
    "Agent.query": lambda given: ph.Agent().query("x", **given),
    "Agent.session": lambda given: ph.Agent().session(**given),
    "Agent.with_options": lambda given: ph.Agent().with_options(**given),
    "Agent.prewarm": lambda given: ph.Agent().prewarm(**given),
    "Session.query": lambda given: ph.session().query("x", **given),
    "Session.update": lambda given: ph.session().update(**given),
    "Session.fork": lambda given: ph.session(resume="x").fork(**given),
    "Options": lambda given: ph.Options(**given),
    "Options.layer": lambda given: ph.Options.layer(**given),
    "Options.with_": lambda given: ph.Options().with_(**given),
    "Options.preset": lambda given: ph.Options.preset("edit", **given),
    "sync.query": lambda given: sync.query("x", **given),
    "sync.session": lambda given: sync.session(**given),
    "sync.configure": lambda given: sync.configure(**given),
    "sync.Agent": lambda given: sync.Agent(**given),
    "sync.Agent.query": lambda given: sync.Agent().query("x", **given),
    "sync.Agent.session": lambda given: sync.Agent().session(**given),
    "sync.Agent.with_options": lambda given: sync.Agent().with_options(**given),
    "sync.Agent.prewarm": lambda given: sync.Agent().prewarm(**given),
    "sync.Session.query": lambda given: sync.session().query("x", **given),
    "sync.Session.update": lambda given: sync.session().update(**given),
    "sync.Session.fork": lambda given: sync.session(resume="x").fork(**given),
}


@pytest.mark.requirement("E76", "E45")
@pytest.mark.parametrize("made", TAKES_SETTINGS)
def test_the_arguments_of_a_wrong_call_are_not_kept_in_our_frames(made: str) -> None:
    with pytest.raises((ph.OptionsError, TypeError)) as caught:
        TAKES_SETTINGS[made]({"api_key": KEYS["api"], "unknown_setting": 1})
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = [frame for frame in shown.stack if f"{os.sep}src{os.sep}pilothouse" in frame.filename]
    assert ours
    clean([frame.locals for frame in ours], made)
    clean(str(caught.value), made)


def test_every_function_that_takes_settings_is_in_the_list() -> None:
    places: dict[str, dict[str, Any]] = {
        "": {name: getattr(ph, name) for name in ph.__all__},
        "sync.": {name: getattr(sync, name) for name in ph.__all__},
    }
    for prefix, module in list(places.items()):
        places |= {f"{prefix}{name}.": dict(vars(module[name])) for name in ("Agent", "Session", "Options")}
    found = {
        f"{prefix}{name}".removesuffix(".__init__").replace("sync.Options", "Options")
        for prefix, values in places.items()
        for name, value in values.items()
        if "Unpack[Settings]" in str(getattr(inspect.unwrap(getattr(value, "__func__", value)), "__annotations__", ""))
    }
    assert found | {"sync.Agent"} == TAKES_SETTINGS.keys()


@pytest.mark.requirement("E76", "E45")
@pytest.mark.parametrize(
    "call",
    [
        lambda: ph.Options.make().api_key([KEYS["api"]]),  # type: ignore[arg-type]
        lambda: ph.HttpServer(url="https://x.invalid", header={"A": KEYS["server-header"]}),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_value_is_not_kept_in_our_frames(call: Any) -> None:
    with pytest.raises((ph.OptionsError, TypeError)) as caught:
        call()
    clean(error_text(caught.value), "the error")


@pytest.mark.requirement("E76")
def test_variables_that_cannot_be_read_show_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, key in (("PILOTHOUSE_ENV", "env"), ("PILOTHOUSE_SETTINGS", "settings")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, '{"TOKEN": "' + KEYS[key] + '"')
            with pytest.raises(ph.OptionsError) as caught:
                _ = ph.Agent().options
        clean(caught.value, variable)


async def failing(options: ph.Options, *, session: bool = False) -> BaseException:
    """The error of a run that fails, with all that stands around it."""
    agent = ph.Agent(options)
    try:
        if session:
            async with agent.session() as talk:
                (await talk.query("go")).raise_for_error()
        else:
            (await agent.query("go")).raise_for_error()
    except ph.PilothouseError as error:
        return error
    pytest.fail("it did not fail")


ECHO = " ".join(key for name, key in KEYS.items() if name != "json-settings")
SLOW = ("hangs", True)  # a child that hangs in a session takes its whole grace to end; one in a query does not
SAYS = {
    "exit": lambda fake: fake.expect("user").stderr(f"bad key: {ECHO}\n").exit(3),
    "kill": lambda fake: fake.expect("user").stderr(f"bad key: {ECHO}").kill(),
    "no result": lambda fake: fake.expect("user").stderr(f"{json.dumps({'headers': ECHO})}\n").exit(0),
    "dies at once": lambda fake: fake.stderr(f"error: invalid {ECHO}\n").exit(1),
    "control error": lambda fake: fake.expect("control_request", "initialize").stderr(ECHO).reply(error="no"),
    "quoted request": lambda fake: fake.expect("control_request", "initialize").reply(error=f"bad value: {ECHO}"),
    "standard output": lambda fake: fake.expect("user").emit(f"bad key: {ECHO}").exit(3),
    "hangs": lambda fake: fake.expect("user").stderr(ECHO).hang(),
}


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("how", "session"), [(how, session) for how in SAYS for session in (False, True) if (how, session) != SLOW]
)
async def test_a_child_that_echoes_keys_on_standard_error(fake: FakeCLI, log: Records, how: str, session: bool) -> None:
    lines: list[str] = []
    SAYS[how](fake)
    limit = 2 if how == "hangs" else 60
    error = await failing(planted(fake.path, stderr=lines.append, timeout=limit), session=session)
    clean(str(error) + repr(error) + repr(vars(error)), how)
    clean(error_text(error), f"the traceback of {how!r}")
    clean(lines, "the stderr callback")
    if how in ("exit", "dies at once"):  # a whole line, and no race with the end
        assert any("[redacted]" in line for line in lines)
        assert any("[redacted]" in line for line in log.lines)


@pytest.mark.requirement("E76")
async def test_errors_of_the_start_show_no_key(tmp_path: Path) -> None:
    broken = tmp_path / "claude"
    broken.write_bytes(b"\x7fELF, but not really")
    broken.chmod(0o755)
    for options in (
        planted(str(tmp_path / "none")),
        planted(str(broken)),
        planted(str(broken), cwd=tmp_path / "none"),
        planted(str(broken), isolation="strict"),
        planted("/bin/true", append_system_prompt="x" * 100, extra_args={"x": "y" * 100_000}),
    ):
        clean(error_text(await failing(options)), "an error of the start")


@pytest.mark.requirement("E76")
async def test_a_line_that_is_too_long_shows_no_key(fake: FakeCLI) -> None:
    fake.expect("user").emit({"type": "system", "note": KEYS["api"] + "x" * 4000}).exit(0)
    clean(error_text(await failing(planted(fake.path, max_line_bytes=2000))), "a line that is too long")


@pytest.mark.requirement("E76")
async def test_private_files_are_private_and_gone_and_arguments_have_no_key(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).hang()
    async with ph.Agent(planted(fake.path)).query("go") as query:
        await anext(aiter(query))
        (call,) = fake.calls
        shown = b" ".join(Path(f"/proc/{call.pid}/cmdline").read_bytes().split(b"\0")).decode()
        clean(shown, "ps")
        paths = [Path(path) for path in re.findall(r"--[a-z-]+=(\S+pilothouse-\S+)", shown)]
        assert paths
        for path in paths:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert any(PLANTED.search(path.read_text()) for path in paths)
        assert call.env["ANTHROPIC_API_KEY"] == KEYS["api"]
    assert not any(path.parent.exists() for path in paths)


@pytest.mark.real_cli
@pytest.mark.requirement("E76")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_managed_settings_hold_without_being_an_argument(
    real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.reply(Steps([ToolUse("Bash", {"command": "touch made"})], "Done."))
    shown: list[bytes] = []

    async def look(_: object) -> None:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                shown.append(process.read_bytes())

    options: dict[str, Any] = {"env": scripted_model.env(), "inherit_env": False, "cwd": tmp_path, "cli": real_cli}
    managed = {"permissions": {"deny": ["Bash(touch *)"]}, "env": {"X_TOKEN": KEYS["managed"]}}
    options |= {"hooks": {"PreToolUse": look}, "allowed_tools": ["Bash"], "managed_settings": managed}
    result = await ph.query("go", **options)
    assert not (tmp_path / "made").exists()
    assert [denial.tool_name for denial in result.permission_denials] == ["Bash"]
    assert any(real_cli.encode() in line for line in shown)
    assert not any(KEYS["managed"].encode() in line for line in shown)


@pytest.mark.requirement("E76")
def test_commands_show_no_key(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PILOTHOUSE_INSTALL": "0",
        "ANTHROPIC_API_KEY": KEYS["inherited"],
        "PILOTHOUSE_API_KEY": KEYS["api"],
        "PILOTHOUSE_AUTH_TOKEN": KEYS["auth"],
        "PILOTHOUSE_ENV": json.dumps({"MY_TOKEN": KEYS["env"]}),
        "PILOTHOUSE_MCP_SERVERS": json.dumps({"a": {"command": "x", "env": {"T": KEYS["server-env"]}}}),
        "PILOTHOUSE_SETTINGS": json.dumps({"env": {"T": KEYS["settings"]}, "apiKeyHelper": KEYS["json-settings"]}),
        "PILOTHOUSE_BASE_URL": f"https://me:{KEYS['base-url']}@x.invalid",
    }
    commands = (["options", "--explain"], ["options", "--json"], ["options", "--policy"], ["doctor", "--quick"])
    for arguments in (*commands, ["doctor", "--quick", "--json"], ["ask", "--cli", "/none", "go"]):
        command = [sys.executable, "-m", "pilothouse", *arguments]
        ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, check=False)
        clean(ran.stdout.decode() + ran.stderr.decode(), " ".join(arguments))
        assert ran.stdout or ran.stderr
