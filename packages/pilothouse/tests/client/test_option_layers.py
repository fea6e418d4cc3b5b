"""Where settings come from: call, agent, `configure()`, file, variables; and the default agent as a facade."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.errors import ConfigError
from pilothouse.options import Options, render
from pilothouse_testing import FakeCLI, as_default, mock_transport

# Queries are made to see how they are checked, and not run.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A working directory of its own, and everything configured in a test is gone after it."""
    directory = tmp_path / "project"
    (directory / ".git").mkdir(parents=True)
    monkeypatch.chdir(directory)
    with as_default():
        yield directory


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


LAYERS = ("variable", "file", "configure", "agent", "options", "call")


@pytest.mark.requirement("L17", "L18", "L19", "L20", "E39", "E40", "E41", "E49", "L62")
@pytest.mark.parametrize("top", range(len(LAYERS) + 1))
def test_the_highest_layer_that_sets_a_field_wins(top: int, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer sets `model`, and one field that nobody above it sets."""
    there = LAYERS[:top]
    if "variable" in there:
        monkeypatch.setenv("PILOTHOUSE_MODEL", "variable")
        monkeypatch.setenv("PILOTHOUSE_MAX_TURNS", "7")
    if "file" in there:
        ph.configure(file=write(project / "pilothouse.toml", 'max_budget_usd = 0.001\nmodel = "file"\n'))
    if "configure" in there:
        ph.configure(model="configure", effort="low")
    agent = ph.Agent(model="agent", allowed_tools=[]) if "agent" in there else ph.Agent()
    options = ph.Options(model="options", timeout=5) if "options" in there else None
    call: dict[str, Any] = {"model": "call", "fallback_model": "haiku"} if "call" in there else {}

    made = agent.query("go", options, **call).options

    assert made.model == (there[-1] if there else None)
    expected: dict[str, Any] = {
        "variable": {"max_turns": 7},
        "file": {"max_budget_usd": 0.001},
        "configure": {"effort": "low"},
        "agent": {"allowed_tools": []},
        "options": {"timeout": 5},
        "call": {"fallback_model": "haiku"},
    }
    kept = {name: value for layer in there for name, value in expected[layer].items()}
    assert {name: value for name, value in made.as_dict().items() if name != "model"} == kept
    origins = {
        "variable": ("max_turns", "PILOTHOUSE_MAX_TURNS"),
        "file": ("max_budget_usd", f"{project / 'pilothouse.toml'}:1"),
        "configure": ("effort", "configure()"),
        "agent": ("allowed_tools", "agent"),
        "options": ("timeout", "call"),
        "call": ("fallback_model", "call"),
    }
    for layer, (name, origin) in origins.items():
        assert made.explain()[name].origin == (origin if layer in there else "default")


@pytest.mark.requirement("L62")
def test_explain_reads_well_and_hides_secrets(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_API_KEY", "sk-ant-never-shown")
    ph.configure(file=write(project / "pilothouse.toml", 'model = "haiku"\n'), max_turns=9)
    explanation = ph.Agent(max_turns=None).query("go", effort="low").options.explain()
    assert str(explanation).splitlines() == [
        f"model      'haiku'     {project / 'pilothouse.toml'}:1",
        "effort     'low'       call",
        "max_turns  None        default (reset: agent)",
        "api_key    [redacted]  PILOTHOUSE_API_KEY",
    ]
    assert "never" not in repr(explanation)
    assert explanation["timeout"].origin == "default"
    assert str(ph.Options().explain()) == "every option has its default value"
    assert ph.Options(model="x").explain()["model"].origin == "set here"
    assert (
        ph.Options(model="x").with_origin("our defaults").with_origin("agent").explain()["model"].origin
        == "our defaults"
    )
    assert pickle.loads(pickle.dumps(ph.query("go").options)).explain()["model"].origin.endswith("pilothouse.toml:1")


@pytest.mark.requirement("L21")
def test_layers_leave_the_callers_objects_alone() -> None:
    tools, options = ["Read"], ph.Options(model="opus")
    agent = ph.Agent(options, allowed_tools=tools)
    before = agent.options
    agent.query("go", options, max_turns=3)
    changed = agent.with_options(max_turns=2)
    ph.configure(effort="low")
    tools.append("Bash")
    assert options == ph.Options(model="opus")
    assert before == ph.Options(model="opus", allowed_tools=["Read"])
    assert agent.options == before.merge(ph.Options(effort="low"))
    assert changed.query("go").options.max_turns == 2


@pytest.mark.requirement("L2", "L5")
def test_the_default_agent_is_one_object_and_no_agent_needs_it() -> None:
    agent = ph.default_agent()
    assert agent is ph.default_agent()
    assert ph.configure(model="haiku") is agent
    settings: dict[str, Any] = {"model": "opus", "max_turns": 3}
    assert ph.Agent(**settings).options.as_dict() == settings


@pytest.mark.requirement("L4", "L22")
async def test_replacing_the_default_agent_changes_what_the_module_asks() -> None:
    def answers(text: str) -> ph.Agent:
        return ph.Agent(transport=lambda: mock_transport(text))

    first, second = answers("first"), answers("second")
    with as_default(first):
        assert (await ph.query("go")).text == "first"
        assert ph.set_default_agent(second) is first
        assert (await ph.query("go")).text == "second"
        assert [m.type async for m in ph.query("go")] == ["system", "assistant", "result"]
    assert ph.default_agent() not in (first, second)
    with pytest.raises(ph.UsageError, match="expected an Agent, got str"):
        ph.set_default_agent("claude-agent")  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("L4")
def test_a_default_agent_of_a_block_is_that_of_its_thread() -> None:
    everywhere, mine = ph.default_agent(), ph.Agent(model="tenant-a")
    elsewhere: list[ph.Agent] = []
    with as_default(mine):
        thread = threading.Thread(target=lambda: elsewhere.append(ph.default_agent()))
        thread.start()
        thread.join()
        assert ph.default_agent() is mine
        assert ph.configure() is mine
        assert sync.default_agent().async_agent is mine
    assert ph.default_agent() is everywhere
    assert mine not in elsewhere


async def test_a_default_agent_of_a_block_is_that_of_its_task() -> None:
    agents = [ph.Agent(model=f"tenant-{name}") for name in "ab"]
    both_inside, inherited = anyio.Event(), list[ph.Agent]()
    entered: list[ph.Agent] = []

    async def inherit() -> None:
        inherited.append(ph.default_agent())

    async def serve(agent: ph.Agent) -> None:
        with as_default(agent):
            entered.append(agent)
            if len(entered) == len(agents):
                both_inside.set()
            await both_inside.wait()
            assert ph.default_agent() is agent
            async with anyio.create_task_group() as inner:
                inner.start_soon(inherit)

    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(serve, agent)
    assert set(map(id, inherited)) == set(map(id, agents))


def test_a_block_with_a_default_agent_forgets_what_it_configured() -> None:
    ph.configure(model="opus")
    with suppress(RuntimeError), as_default():
        ph.configure(model="haiku", max_turns=1)
        raise RuntimeError
    assert ph.query("go").options.as_dict() == {"model": "opus"}


def test_a_wrong_configuration_call_changes_nothing() -> None:
    ph.configure(model="opus")
    with pytest.raises(ph.OptionsError, match="did you mean 'model'"):
        ph.configure(effort="low", modle="haiku")  # pyright: ignore[reportCallIssue]
    assert ph.query("go").options.as_dict() == {"model": "opus"}


@pytest.mark.requirement("E12", "E43")
def test_a_layer_may_need_what_another_one_has(project: Path) -> None:
    ph.configure(file=write(project / "pilothouse.toml", "fork_session = true\n"))
    assert ph.Agent(resume="id").query("go").options.fork_session
    with pytest.raises(ph.OptionsError, match="'fork_session' needs 'resume'"):
        ph.query("go")
    assert ph.Agent(resume="id").query("go", fork_session=True).options.fork_session


@pytest.mark.requirement("E43")
def test_a_call_is_checked_like_everything_else() -> None:
    with pytest.raises(ph.OptionsError, match="option 'max_turns': expected a whole number"):
        ph.Agent().query("go", max_turns="3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ph.OptionsError, match=r"cannot be combined.*'resume' comes from agent.*comes from call"):
        ph.Agent(resume="a").query("go", continue_conversation=True)
    with pytest.raises(ph.OptionsError, match=r"expected pilothouse.Options, got str"):
        ph.query("go", "opus")  # pyright: ignore[reportArgumentType]


# The file.


@pytest.mark.requirement("E49", "L62")
@pytest.mark.parametrize(
    ("name", "text", "model"),
    [
        ("pilothouse.toml", 'model = "a"', "a"),
        ("mine.toml", 'model = "a"', "a"),
        ("pilothouse.toml", "", None),
        ("pyproject.toml", '[project]\nname = "x"\n[tool.pilothouse]\nmodel = "b"', "b"),
        ("pyproject.toml", '["tool".\'pilothouse\']\nmodel = "b"', "b"),
        ("pyproject.toml", '[tool]\npilothouse.model = "b"', "b"),
        ("pyproject.toml", "[tool.pilothouse]", None),
    ],
)
@pytest.mark.parametrize("way", ["call", "variable"])
def test_a_file_counts_when_it_was_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, model: str | None, way: str
) -> None:
    write(project / name, text)
    assert ph.query("go").options.as_dict() == {}
    if way == "call":
        ph.configure(file=name)
    else:
        monkeypatch.setenv("PILOTHOUSE_CONFIG", name)
    assert ph.query("go").options.model == model


@pytest.mark.parametrize("name", ["pilothouse.toml", "pyproject.toml", "config.toml", ".pilothouse.toml"])
@pytest.mark.parametrize("where", [".", "..", ".config/pilothouse", "home/.config/pilothouse"])
async def test_a_file_that_nobody_named_is_not_read(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    """Not even the user's own, which is for the command: it would steer every program that imports the library."""
    monkeypatch.setenv("HOME", str(project / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    header = "[tool.pilothouse]\n" if name == "pyproject.toml" else ""
    canary = tmp_path / "ran"
    program = write(project / "claude", f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    write(project / where / name, f'{header}cli = "{program}"\nmax_turns = 1\n')
    with FakeCLI().text("hello") as fake:
        monkeypatch.setenv("PILOTHOUSE_CLI", str(fake.path))
        assert (await ph.query("go")).text == "hello"
        assert not [flag for flag in fake.calls[0].argv if flag.startswith("--max-turns")]
    assert not canary.exists()


def test_relative_paths_in_a_file_begin_at_the_file(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "pyproject.toml", "[tool.pilothouse]\nmax_turns = 2\nadd_dirs = ['lib', '/abs']\ncwd = '.'")
    monkeypatch.chdir(tmp_path)
    ph.configure(file="project/pyproject.toml")
    options = ph.query("go").options
    assert options.as_dict() == {"max_turns": 2, "add_dirs": [str(project / "lib"), "/abs"], "cwd": str(project)}


@pytest.mark.parametrize("way", ["call", "variable"])
def test_a_file_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    file = write(project / "pilothouse.toml", 'model = "a"')
    if way == "call":
        ph.configure(file=file)
    else:
        monkeypatch.setenv("PILOTHOUSE_CONFIG", str(file))
    assert ph.query("go").options.model == "a"
    file.write_text('model = "b"')
    ph.configure()
    assert ph.query("go").options.model == "a"
    ph.configure(file=file)
    assert ph.query("go").options.model == "b"


def test_the_file_of_the_program_replaces_that_of_the_variable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "of-variable.toml", 'model = "variable"\nmax_turns = 1')
    write(project / "first.toml", 'model = "first"\neffort = "low"')
    write(project / "second.toml", 'model = "second"')
    monkeypatch.setenv("PILOTHOUSE_CONFIG", "of-variable.toml")
    assert ph.query("go").options.as_dict() == {"model": "variable", "max_turns": 1}
    ph.configure(file="first.toml")
    assert ph.query("go").options.as_dict() == {"model": "first", "effort": "low"}
    ph.configure(file="second.toml")
    assert ph.query("go").options.as_dict() == {"model": "second"}


def test_a_file_that_cannot_be_read_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ph.configure(file=write(project / "good.toml", 'model = "good"'))
    bad = write(project / "bad.toml", "modle = 1")
    for settings in ({"file": bad}, {"file": project / "good.toml", "modle": "x"}, {"file": "missing.toml"}):
        with pytest.raises(ph.OptionsError):
            ph.configure(effort="low", **settings)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert ph.query("go").options.as_dict() == {"model": "good"}
    with as_default():
        monkeypatch.setenv("PILOTHOUSE_CONFIG", "missing.toml")
        ph.configure(file="good.toml")
    with as_default(), pytest.raises(ConfigError, match=r"there is no configuration file .*/project/missing\.toml"):
        ph.configure(file="missing.toml")


BAD_FILES = [
    ("pilothouse.toml", "a = 1\n\nmodel = \n", 3, "not valid TOML"),
    ("pilothouse.toml", 'model = "a', 1, "not valid TOML"),
    ("pilothouse.toml", b"model = 'a'\neffort = '\xff'", 2, "not UTF-8"),
    ("pilothouse.toml", "# x\nmodle = 'a'\n", 2, "unknown option 'modle'; did you mean 'model'?"),
    ("pilothouse.toml", "model = 'a'\nmax_turns = '5'\n", 2, "option 'max_turns': expected a whole number"),
    ("pilothouse.toml", "[env]\nA = 1", 1, "option 'env'"),
    (
        "pilothouse.toml",
        "api_key = 'sk-ant-oops'",
        1,
        "is not allowed in a configuration file: keys belong in the env",
    ),
    ("pilothouse.toml", "transport = 'x'", 1, "is not allowed in a configuration file: it takes a Python object"),
    ("pilothouse.toml", "resume = 'a'\ncontinue_conversation = true", 1, "cannot be combined"),
    ("pyproject.toml", "[project]\nmodel = 1\n[tool.pilothouse]\nmodel = 1", 4, "option 'model': expected"),
    ("pyproject.toml", "[tool.pilothouse.mcp_servers]\n[tool.pilothouse.modle]", 2, "unknown option 'modle'"),
    ("pyproject.toml", "[tool]\npilothouse = 5", None, "expected a table [tool.pilothouse]"),
    ("pyproject.toml", "[project]\nname = 'x'", None, "expected a table [tool.pilothouse]"),
    ("pilothouse.toml", "[tool.pilothouse]\nmodel = 'a'", 1, "unknown option 'tool'"),
    ("pyproject.toml", "[tool.pilothouse]\nx = [", 2, "not valid TOML"),
]


@pytest.mark.requirement("E45", "L59")
@pytest.mark.parametrize(("name", "text", "line", "expected"), BAD_FILES)
def test_a_bad_file_is_one_error_with_file_and_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | bytes, line: int | None, expected: str
) -> None:
    path = project / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("PILOTHOUSE_CONFIG", str(path))
    with FakeCLI().text("never") as fake:
        with pytest.raises(ConfigError):
            ph.query("go", cli=fake.path)
        with pytest.raises(ConfigError) as caught:  # it is there again
            ph.query("go", cli=fake.path)
        assert fake.calls == []
    where = str(path) if line is None else f"{path}:{line}"
    assert str(caught.value).startswith(where)
    assert expected in str(caught.value)
    assert "oops" not in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(path), line)


def test_files_that_are_no_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "pilothouse.toml"
    path.mkdir()
    monkeypatch.setenv("PILOTHOUSE_CONFIG", str(path))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        ph.query("go")
    path.rmdir()
    path.symlink_to(project / "nowhere")
    with pytest.raises(ConfigError, match="there is no configuration file"):
        ph.query("go")


# Variables.


@pytest.mark.requirement("E49")
@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("PILOTHOUSE_MODEL", "opus", {"model": "opus"}),
        ("PILOTHOUSE_MAX_BUDGET_USD", "0.001", {"max_budget_usd": 0.001}),
        ("PILOTHOUSE_PARTIAL_MESSAGES", "yes", {"partial_messages": True}),
        ("PILOTHOUSE_STRICT_MCP_CONFIG", "0", {"strict_mcp_config": False}),
        (
            "PILOTHOUSE_ALLOWED_TOOLS",
            "Read,Bash(git log:*,git diff:*)",
            {"allowed_tools": ["Read", "Bash(git log:*,git diff:*)"]},
        ),
        ("PILOTHOUSE_ENV", '{"A": "b"}', {"env": {"A": "b"}}),
        ("PILOTHOUSE_MODEL", "", {}),
        ("PILOTHOUSE_NO_SUCH_OPTION", "x", {}),
        ("PILOTHOUSE_TRANSPORT", "x", {}),
    ],
)
def test_variables_set_options(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, value: dict[str, Any]
) -> None:
    monkeypatch.setenv(variable, text)
    assert ph.query("go").options.as_dict() == value


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("PILOTHOUSE_MAX_TURNS", "many", "PILOTHOUSE_MAX_TURNS: cannot be read as option 'max_turns'"),
        ("PILOTHOUSE_MAX_TURNS", "0", "PILOTHOUSE_MAX_TURNS: option 'max_turns': expected a whole number"),
        ("PILOTHOUSE_ENV", "sk-secret", "PILOTHOUSE_ENV: cannot be read as option 'env'"),
        ("PILOTHOUSE_PERMISSION_MODE", "yolo", "PILOTHOUSE_PERMISSION_MODE: option 'permission_mode': expected one of"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ph.OptionsError) as caught:
        ph.query("go")
    assert str(caught.value).startswith(expected)
    assert "sk-secret" not in str(caught.value)


def test_a_misspelt_variable_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pilothouse.client.agent._seen_variables", set[str]())
    for name in ("PILOTHOUSE_MAX_TURN", "PILOTHOUSE_MY_PROGRAM", "PILOTHOUSE_TRANSPORT"):
        monkeypatch.setenv(name, "secret")
    for name in ("CACHE", "CONFIG", "HOST", "HOST_TOKEN", "INSTALL", "JOURNAL", "REQUIRE_CLI"):
        monkeypatch.setenv(f"PILOTHOUSE_{name}", os.devnull if name == "CONFIG" else "x")
    for _ in range(2):
        ph.query("go")
    [record] = caplog.records
    assert record.getMessage() == (
        "the variable PILOTHOUSE_MAX_TURN has no effect, because there is no such option; "
        "did you mean PILOTHOUSE_MAX_TURNS?"
    )


@pytest.mark.requirement("L22", "L26")
async def test_every_mode_gives_the_child_the_same_command_line_and_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTHOUSE_FALLBACK_MODEL", "haiku")
    with FakeCLI().text("done") as fake:
        text = f'cli = "{fake.path}"\nallowed_tools = ["Read"]\n[env]\nFROM_FILE = "1"'
        ph.configure(file=write(project / "pilothouse.toml", text))
        agent = ph.Agent(model="opus", api_key="sk-ant-test")
        await agent.query("go", max_turns=2)
        async for _ in agent.query("go", max_turns=2):
            pass
        await agent.query("go", max_turns=2, on_message=lambda _: None)
        calls = fake.calls
    assert len(calls) == 3
    assert calls[0].argv == calls[1].argv == calls[2].argv
    for flag in ("--model=opus", "--fallback-model=haiku", "--allowedTools=Read", "--max-turns=2"):
        assert flag in calls[0].argv
    for call in calls:
        assert (call.env["FROM_FILE"], call.env["ANTHROPIC_API_KEY"]) == ("1", "sk-ant-test")


# Through to the child.


@contextmanager
def count_calls(*functions: Callable[..., Any]) -> Generator[list[int]]:
    """Count the calls of functions in this thread, whatever name they are called by."""
    codes: list[CodeType] = [function.__code__ for function in functions]
    counts = [0] * len(codes)

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            counts[codes.index(frame.f_code)] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)


async def test_the_options_of_a_query_are_merged_once_and_rendered_once(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.text("one").text("two").text("three")
    monkeypatch.setenv("PILOTHOUSE_MODEL", "opus")
    with count_calls(Options.stack, render) as counts:
        await ph.Agent(timeout=60).query("x", cli=fake.path)
    assert counts == [1, 1]
    async with ph.session(cli=fake.path) as session:
        with count_calls(Options.stack, render) as counts:
            await session.query("x", timeout=60)
            assert counts == [1, 0]
            await session.query("x", Options(timeout=60), idle_timeout=60)
    assert counts == [3, 0]  # two sets of settings for the call
