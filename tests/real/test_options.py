"""Options do in the real CLI what they say: sizes, places, tools, modes, the environment, forms of the prompt."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conversations import both_loops

import pilothouse as ph
from pilothouse.messages import SessionTitleChangedMessage
from pilothouse.options import AgentDefinition, EnabledThinking, Plugin, Sandbox, SystemPromptPreset
from pilothouse_testing import HttpError, RecordedRequest, ScriptedModel, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

MEGABYTE = 1_000_000


def sent(request: RecordedRequest) -> str:
    return json.dumps(request.body)


@both_loops
@pytest.mark.requirement("L23", "E3", "R31")
async def test_a_megabyte_of_prompt(claude: Any, model: ScriptedModel) -> None:
    model.default = "read"
    prompt = "p" * MEGABYTE + ' ende\u2028é\U0001f600 "quoted" $HOME `x` \\ \x1b'
    result = await claude.ask(prompt)
    assert result.text == "read"
    assert model.requests[0].last_user_text == prompt


@pytest.mark.requirement("L12", "E4")
async def test_a_megabyte_of_system_prompt(claude: Any, model: ScriptedModel) -> None:
    model.default = "read"
    for name in ("system_prompt", "append_system_prompt"):
        text = f"Be {name}: " + "s" * MEGABYTE + " é"
        assert (await claude.ask(**{name: text})).text == "read"
        system = model.requests[-1].system_text
        assert text in system
        assert ("Claude Code" in system.replace(text, "")) or name == "system_prompt"
        assert (await claude.ask(**{name: f"Short {name}."})).text == "read"
        assert f"Short {name}." in model.requests[-1].system_text
    assert not list((claude.home / "tmp").glob("pilothouse-*"))


async def test_a_megabyte_of_schema(claude: Any, model: ScriptedModel) -> None:
    description = "d" * MEGABYTE
    schema = {"type": "object", "properties": {"who": {"type": "string", "description": description}}}
    model.reply(ToolUse("StructuredOutput", {"who": "me"}))
    result = await claude.ask(json_schema=schema)
    assert result.structured == {"who": "me"}
    tools = {tool["name"]: tool for tool in model.requests[0].body["tools"]}
    assert tools["StructuredOutput"]["input_schema"]["properties"]["who"]["description"] == description


async def test_a_megabyte_of_settings_and_of_mcp_configuration(claude: Any, model: ScriptedModel) -> None:
    model.reply(ToolUse("Bash", {"command": "echo $SMALL ${#LARGE}"}))
    model.reply("read")
    servers = {"none": {"command": "/bin/false", "args": [], "env": {"LARGE": "c" * MEGABYTE}}}
    settings = {"env": {"SMALL": "little", "LARGE": "b" * 100_000}, "companyAnnouncements": ["a" * MEGABYTE]}
    result = await claude.ask(
        settings=settings, mcp_servers=servers, strict_mcp_config=True, permission_mode="bypassPermissions"
    )
    assert model.requests[1].tool_text == "little 100000"
    init = next(m for m in result.messages if isinstance(m, ph.InitMessage))
    assert [(server.name, server.status) for server in init.mcp_servers] == [("none", "failed")]


async def test_agents_of_a_hundred_kilobytes(claude: Any, model: ScriptedModel) -> None:
    agents = {"finder": {"description": "finds", "prompt": "You find. " + "z" * 100_000, "tools": ["Read"]}}
    call = ToolUse("Agent", {"description": "look", "prompt": "Find the key", "subagent_type": "finder"})
    model.on("Find the key", reply="It is under the mat.")
    model.reply(call)
    model.reply("Under the mat.")
    model.default = "The agent is done."  # it ran in the background, and its end wakes the model
    query = claude.ask("Where?", agents=agents, permission_mode="bypassPermissions")
    events = [event async for event in query.events()]
    result = await query.result()
    asked = next(r for r in model.requests if r.last_user_text == "Find the key")
    assert "z" * 100_000 in asked.system_text
    assert asked.tools == ("Read",)
    assert result.text == "Under the mat."
    assert result.full_text == "Under the mat.\nThe agent is done."
    texts = [
        "".join(e.text for e in events if isinstance(e, ph.TextDelta) and bool(e.agent) is by) for by in (False, True)
    ]
    assert texts == ["Under the mat.The agent is done.", "It is under the mat."]
    assert result.validate().ok


@pytest.mark.requirement("L13", "E8")
async def test_where_it_runs(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "note.txt").write_text("from afar")
    near = claude.cwd / "near"
    near.mkdir()
    read = ToolUse("Read", {"file_path": str(tmp_path / "far" / "note.txt")})
    for reply in (ToolUse("Bash", {"command": "pwd"}), read, "done", read, "done"):
        model.reply(reply)
    result = await claude.ask(cwd=near, add_dirs=[tmp_path / "far"], allowed_tools=["Bash(pwd)"])
    assert [r.tool_text for r in model.requests[1:3]] == [str(near), "1\tfrom afar"]
    init = next(m for m in result.messages if isinstance(m, ph.InitMessage))
    assert init.cwd == str(near)
    # Without `add_dirs` the same file needs a permission that nobody can give.
    other = await claude.ask(cwd=near)
    assert [denial.tool_name for denial in other.permission_denials] == ["Read"]


@pytest.mark.requirement("L8", "L9", "E5", "E9")
async def test_tools_and_modes(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    await claude.ask(tools=[])
    assert model.requests[-1].tools == ()
    await claude.ask(tools=["Bash", "Read"])
    assert {"Bash", "Read"} <= set(model.requests[-1].tools)
    assert not {"Edit", "Write"} & set(model.requests[-1].tools)
    planned = await claude.ask(permission_mode="plan", disallowed_tools=["Bash"])
    init = next(m for m in planned.messages if isinstance(m, ph.InitMessage))
    assert init.permission_mode == "plan"
    assert "Bash" not in model.requests[-1].tools

    # `tools` says which there are, `allowed_tools` which run unasked.
    for settings, denied in (({"tools": ["Bash"]}, ["Bash"]), ({"allowed_tools": ["Bash"]}, list[str]())):
        model.reply(ToolUse("Bash", {"command": "touch made"}))
        made = await claude.ask(**settings)
        assert [denial.tool_name for denial in made.permission_denials] == denied
        assert (claude.cwd / "made").exists() == (not denied)

    for reply in (ToolUse("Bash", {"command": "echo one"}), ToolUse("Bash", {"command": "touch two"}), "done"):
        model.reply(reply)
    result = await claude.ask(allowed_tools=["Bash(echo:*)"])
    assert [denial.tool_input["command"] for denial in result.permission_denials] == ["touch two"]


@pytest.mark.requirement("L7", "E6")
async def test_the_model(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    result = await claude.ask(model="claude-sonnet-4-5", effort="low", betas=["context-1m-2025-08-07"])
    request = model.requests[0]
    assert request.model == "claude-sonnet-4-5"
    assert list(result.model_usage) == ["claude-sonnet-4-5"]
    assert "context-1m-2025-08-07" in request.headers["anthropic-beta"]
    await claude.ask(model="opus")
    assert "opus" in model.requests[-1].model


async def test_settings_sources_and_bare(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    (claude.cwd / "CLAUDE.md").write_text("Always say MARKER42.")
    await claude.ask()
    assert "MARKER42" in sent(model.requests[-1])
    await claude.ask(setting_sources=[])
    assert "MARKER42" not in sent(model.requests[-1])
    bare = await claude.ask(bare=True)
    assert "MARKER42" not in sent(model.requests[-1])
    assert bare.text == "done"


@pytest.mark.requirement("L16", "L26", "E2", "E65", "E66", "E76")
async def test_the_environment_of_tools(claude: Any, model: ScriptedModel) -> None:
    names = "${ENTRY:-none} ${CLAUDE_CODE_ENTRYPOINT} ${OWN}"
    model.reply(ToolUse("Bash", {"command": f"echo {names}; tr '\\0' ' ' </proc/$PPID/cmdline"}))
    model.reply("done")
    key = "sk-ant-scripted-another-key-of-no-worth"
    await claude.ask(env={"OWN": "mine"}, api_key=key, permission_mode="bypassPermissions")
    text = model.requests[1].tool_text
    assert text.startswith("none sdk-pilothouse mine")
    assert "--output-format" in text
    assert key not in text


@both_loops
@pytest.mark.requirement("L23", "L24", "L25", "E77", "G1")
async def test_the_prompt_as_an_argument(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    prompt = "-rf \"$HOME\" `x` 'y';\n--model=none \\"
    result = await claude.ask(prompt, prompt_via="argv")
    assert result.text == "done"
    assert model.requests[0].last_user_text == prompt
    texts = [text async for text in claude.ask("x" * 100_000, prompt_via="argv").text_stream()]
    assert "".join(texts) == "done"
    assert model.requests[1].last_user_text == "x" * 100_000


async def test_mentions_and_commands_and_how_to_switch_them_off(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    (claude.cwd / "secret.txt").write_text("the password is swordfish")
    prompt = f"look at @{claude.cwd}/secret.txt"
    await claude.ask(prompt)
    assert "swordfish" in sent(model.requests[-1])
    await claude.ask(prompt, verbatim_prompts=True)
    assert "swordfish" not in sent(model.requests[-1])
    assert model.requests[-1].last_user_text == prompt

    command = await claude.ask("/cost")
    assert command.is_success
    assert "cost" in command.text
    assert len(model.requests) == 2
    await claude.ask("/cost", verbatim_prompts=True)
    assert model.requests[-1].last_user_text == "/cost"


@pytest.mark.requirement("R32", "E71")
async def test_standard_error_of_the_real_cli(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    lines: list[str] = []
    result = await claude.ask(model="no-such-model", stderr=lines.append)
    assert result.text == "done"
    assert any("no-such-model" in line for line in lines)


def init(result: Any) -> Any:
    return next(message for message in result.messages if isinstance(message, ph.InitMessage))


@pytest.mark.requirement("S27", "S28")
async def test_thinking_and_token_limits(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    name = "claude-sonnet-4-5"

    async def thinking(**settings: Any) -> Any:
        await claude.ask(model=name, **settings)
        return model.requests[-1].body["thinking"]

    assert (await thinking(max_thinking_tokens=2000))["budget_tokens"] == 2000
    wins = await thinking(max_thinking_tokens=2000, thinking=EnabledThinking(budget_tokens=3000, display="summarized"))
    assert (wins["budget_tokens"], wins["display"]) == (3000, "summarized")
    assert (await thinking(thinking="disabled", max_thinking_tokens=2000)) == {"type": "disabled"}
    assert (await thinking(max_thinking_tokens=0)) == {"type": "disabled"}
    assert (await thinking(thinking="enabled"))["type"] == "enabled"

    await claude.ask(model=name, max_output_tokens=1234, task_budget=50_000, client_app="my-app/1.0")
    request = model.requests[-1]
    assert request.body["max_tokens"] == 1234
    assert request.body["output_config"]["task_budget"]["total"] == 50_000
    assert "client-app/my-app/1.0" in request.headers["user-agent"]


@pytest.mark.requirement("E4", "L12")
async def test_the_forms_of_the_system_prompt(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    (claude.cwd / "prompt.md").write_text("FROM-A-FILE")
    for prompt, marker in (
        ({"type": "file", "path": "prompt.md"}, "FROM-A-FILE"),
        (["FIRST", "SECOND"], "FIRST\n\nSECOND"),
        ({"type": "custom", "prompt": "CUSTOM", "snapshot": False}, "CUSTOM"),
    ):
        await claude.ask(system_prompt=prompt)
        assert marker in model.requests[-1].system_text
        assert len(json.dumps(model.requests[-1].body["system"])) < 2000
    await claude.ask(system_prompt=SystemPromptPreset(append="APPENDED", exclude_dynamic_sections=True))
    request = model.requests[-1]
    assert "APPENDED" in request.system_text
    assert str(claude.cwd) not in request.system_text.split("APPENDED")[0]
    for size in (1, 20_000):
        await claude.ask(plan_mode_instructions="PLAN-LIKE-THIS" * size, permission_mode="plan")
        assert "PLAN-LIKE-THIS" in sent(model.requests[-1])


async def test_agents_in_both_forms_and_as_the_leader(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    agent = AgentDefinition(description="REVIEWS-CODE", prompt="AGENT-PROMPT", tools=["Read"])
    for via in ("stdin", "argv"):
        result = await claude.ask(agents={"reviewer": agent}, prompt_via=via)
        assert "reviewer" in init(result).agents
        assert "REVIEWS-CODE" in sent(model.requests[-1])
    await claude.ask(agents={"reviewer": agent}, agent="reviewer")
    assert "AGENT-PROMPT" in model.requests[-1].system_text
    assert "Bash" not in model.requests[-1].tools


async def test_plugins_and_skills(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    plugin = claude.cwd / "plugins" / "greeter"
    (plugin / ".claude-plugin").mkdir(parents=True)
    (plugin / ".claude-plugin" / "plugin.json").write_text(json.dumps({"name": "greeter", "version": "1.0.0"}))
    for name in ("hello", "goodbye"):
        (plugin / "skills" / name).mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: SKILL-{name}\n---\nSay {name}.\n"
        (plugin / "skills" / name / "SKILL.md").write_text(text)
    for form in (plugin, Plugin(path="plugins/greeter", skip_mcp_discovery=True)):
        result = await claude.ask(plugins=[form], skills=["greeter:hello"])
        assert "greeter" in [found.name for found in init(result).plugins]
        assert "SKILL-hello" in sent(model.requests[-1])
        assert "SKILL-goodbye" not in sent(model.requests[-1])
    without = await claude.ask(plugins=[plugin], disable_slash_commands=True)
    assert init(without).skills == []


@pytest.mark.requirement("E9", "R36")
async def test_what_restricts(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    deny = {"permissions": {"deny": ["Bash"]}}
    for settings in (
        {"restricted": True},
        {"managed_settings": deny},
        {"managed_settings": {**deny, "x": "y" * 20_000}},
    ):
        await claude.ask(**settings)
        assert "Bash" not in model.requests[-1].tools
    for reply in (ToolUse("Bash", {"command": "touch denied"}), "done"):
        model.reply(reply)
    result = await claude.ask(permission_prompts="none")
    assert len(result.permission_denials) == 1
    assert not (claude.cwd / "denied").exists()
    result = await claude.ask(permission_mode="bypassPermissions")
    assert init(result).permission_mode == "bypassPermissions"


@pytest.mark.requirement("R36")
async def test_the_sandbox_reaches_the_cli_beside_other_settings(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    # A sandbox that this PATH has no program for, and that must be there.
    sandbox = Sandbox(enabled=True, fail_if_unavailable=True, bwrap_path="/no/such/bwrap")
    lines: list[str] = []
    result = await claude.ask(sandbox=sandbox, settings={"model": "haiku"}, stderr=lines.append)
    assert not result.is_success
    assert "sandbox" in f"{result.error} {lines}".lower()
    weak = await claude.ask(sandbox={"enabled": True, "fail_if_unavailable": False}, settings='{"model": "haiku"}')
    assert weak.text == "done"
    assert "haiku" in model.requests[-1].model


async def test_the_account_the_place_and_the_traces(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    without = {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"}
    config, log = claude.home / "other-config", claude.home / "debug.log"
    environ = {name: value for name, value in claude.model.env().items() if name not in without}
    query = ph.query(
        "go", cli=claude.path, cwd=claude.cwd, inherit_env=False, env=environ, auth_token="a-token-of-no-worth",
        base_url=model.url, config_dir=config, title="My title", debug_file=log, replay_user_messages=True,
        api_max_retries=0, provider="anthropic", nonessential_traffic=False,
    )  # fmt: skip
    claude.queries.append(query)
    result = await query
    assert result.text == "done"
    assert "authorization" in model.requests[0].headers
    assert list((config / "projects").glob("*/*.jsonl"))
    assert log.stat().st_size
    assert [m.title for m in result.messages if isinstance(m, SessionTitleChangedMessage)] == ["My title"]
    assert any(isinstance(m, ph.UserMessage) and m.is_replay for m in result.messages)

    model.default = HttpError(529)
    failed = await claude.ask(api_max_retries=0)
    assert not failed.is_success
    bedrock = await claude.ask(provider="bedrock")
    assert "AWS" in str(bedrock.error)
    assert len(model.requests) == 2


async def test_everything_the_handshake_can_carry_at_once(claude: Any, model: ScriptedModel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 20_000}}, "required": ["a"]}
    model.reply(ToolUse("StructuredOutput", {"a": "b"}))
    result = await claude.ask(
        json_schema=schema, system_prompt=["X"], plan_mode_instructions="P" * 20_000, skills=[],
        forward_subagent_text=True, prompt_suggestions=True,
        agents={"r": {"description": "d", "prompt": "p"}}, tool_aliases={"Grep": "mcp__x__grep"},
        agent_progress_summaries=True, per_task_stop_affordance=True, managed_settings={"x": "y" * 20_000},
    )  # fmt: skip
    assert result.structured == {"a": "b"}
    assert "r" in init(result).agents


async def test_a_worktree_of_the_repository(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"
    git = ["git", "-c", "user.email=a@b", "-c", "user.name=n"]
    subprocess.run([*git, "init", "-q"], cwd=claude.cwd, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], cwd=claude.cwd, check=True)
    for worktree, name in ((True, "*"), ("fix", "fix")):
        result = await claude.ask(worktree=worktree)
        init = next(message for message in result.messages if isinstance(message, ph.InitMessage))
        assert Path(init.cwd or "") in set((claude.cwd / ".claude" / "worktrees").glob(name))


async def test_the_window_for_compaction_is_taken_and_an_advisor_accepted(claude: Any) -> None:
    async with claude.session(autocompact=120_000, advisor="opus") as session:
        usage = await session.info.context_usage()
    assert usage.max_tokens == 120_000


async def test_files_to_download_need_a_cloud_session(claude: Any) -> None:
    with pytest.raises(ph.CLIExitedError, match="CLAUDE_CODE_SESSION_ACCESS_TOKEN"):
        await claude.ask(files=["file_abc:doc.txt"])
