"""Which wishes of clients a host takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilothouse.errors import ProtocolError, UsageError
from pilothouse.options import Options, PrivateFile, render
from pilothouse.options.table import TABLE, EnvSwitch, EnvVar, SplitTarget, list_flags
from pilothouse_access import RefusedRequestError
from pilothouse_access.on_behalf import TOKEN_VARIABLE
from pilothouse_access.owners import Owner
from pilothouse_host.policy import (
    ALLOWED_FLAGS,
    CLIENT_OPTIONS,
    CLIENT_VARIABLES,
    ClientLimits,
    ControlRequestRefusedError,
    HostPolicy,
    InputFilter,
)
from pilothouse_remote.messages import LaunchMessage

ARGV = ("--print", "--verbose")
BASE = {"PATH": "/bin", "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-host", TOKEN_VARIABLE: "x" * 20, "CLAUDECODE": "1"}


def asked(
    argv: tuple[str, ...], initialize: dict[str, Any] | None = None, **launch: Any
) -> tuple[LaunchMessage, dict[str, Any] | None]:
    return LaunchMessage(argv, **launch), initialize


def _plain(file: PrivateFile) -> Any:
    return json.loads(file.content) if file.suffix == ".json" else file.content


def changed(policy: HostPolicy, **limits: Any) -> HostPolicy:
    return msgspec.structs.replace(policy, limits=ClientLimits(**limits))


def settings_file(**settings: Any) -> dict[str, Any]:
    return {"argv": ARGV, "files": (PrivateFile("settings", ".json", json.dumps(settings).encode()),)}


@pytest.fixture
def policy(tmp_path: Path) -> HostPolicy:
    for name in ("root/sub", "root-too", "second"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to("/")
    (tmp_path / "root" / "beside").symlink_to(tmp_path / "second")
    return HostPolicy("/bin/claude", (str(tmp_path / "root"), str(tmp_path / "second")), (), BASE)


def test_what_a_program_renders_is_taken(policy: HostPolicy, tmp_path: Path) -> None:
    options = Options(
        model="opus",
        allowed_tools=["Read", "Bash(git log:*)"],
        system_prompt="x" * 20_000,
        mcp_servers={"s": {"type": "stdio", "command": "server"}},
        settings='{"a": 1}',
        add_dirs=[str(tmp_path / "second")],
        resume="0b0c0d0e-0000-4000-8000-000000000000",
        cwd=str(tmp_path / "root" / "sub"),
    )
    made = render(options, {})
    admitted = policy.admit(
        LaunchMessage(made.argv, made.files, made.trailing_args, {"CLAUDE_CODE_MAX_RETRIES": "3"}, made.cwd)
    )
    assert (admitted.argv, admitted.cwd) == (("--permission-mode=default", *made.argv), made.cwd)
    read = [(file.flag, file.suffix, _plain(file)) for file in made.files]
    assert [(file.flag, file.suffix, _plain(file)) for file in admitted.files] == read
    assert admitted.cli == "/bin/claude"
    assert dict(admitted.env) == {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-host",
        "CLAUDE_CODE_MAX_RETRIES": "3",
    }
    prompt = render(Options(prompt_via="argv"), {}, prompt="-what is this?")
    assert policy.admit(LaunchMessage(prompt.argv, tail=prompt.trailing_args)).trailing_args == (
        "--print",
        "--",
        "-what is this?",
    )


REFUSED_FLAGS: dict[str, list[str]] = {
    "--flag=value alone": ["update", "-c"],
    "this host does not take it": [
        "--worktree=x", "--bg", "--debug-file=x", "--project-config-root=sub", "--remote=x", "--rc", "--attach-serve",
        "--messaging-socket-path=/tmp/x", "--client-data-url=http://x", "--forward-home-settings",
        "--dangerously-skip-permissions", "--Model=x",
    ],
    "--allow-flag plugin-url": ["--plugin-url=https://x/y.zip"],
    "is not below": [
        "--add-dir=/etc", "--add-dir=out/etc", "--add-dir=../root-too", "--settings=/etc/passwd",
        "--system-prompt-file=../../x", "--settings={}/../../outside.json", "--managed-settings=/etc/passwd",
    ],
    "not a plain path": [
        "--mcp-config= /outside.json", "--add-dir= /", "--add-dir=/\n", "--add-dir=~", "--add-dir=~root/x",
        "--add-dir=\u00a0/etc",
    ],
    "--settings: 'sub'": ["--settings=sub"],
    "expected a JSON object": ["--settings=[]"],
    "not a path": ["--resume=../../secret.jsonl"],
    "too long": ["--model=" + "x" * 200_000],
    "NUL": ["--model=a\0b"],
    "expected --add-dir=value": ["--add-dir"],
}  # fmt: skip
REFUSED_VARIABLES = (
    "ANTHROPIC_MODEL", "ANTHROPIC_UNIX_SOCKET", "CLAUDE_CODE_DIAGNOSTICS_FILE", "CLAUDE_CODE_PLUGIN_DIRS",
    "CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_TMPDIR", "CLAUDE_CONFIG_DIR", TOKEN_VARIABLE,
)  # fmt: skip
REFUSED_TAILS: list[tuple[str, ...]] = [
    ("--print", "--worktree"), ("mcp", "list"), ("--print", "--settings={}", "--"), ("--settings={}", "--print", "--"),
    ("--print", "--settings={}", "-p"), ("a prompt", "--"),
]  # fmt: skip


@pytest.mark.requirement("E84")
@pytest.mark.parametrize(
    ("wish", "words"),
    [
        *(({"argv": (*ARGV, flag)}, words) for words, flags in REFUSED_FLAGS.items() for flag in flags),
        *(({"argv": ARGV, "tail": tail}, "one prompt") for tail in REFUSED_TAILS),
        ({"argv": ("--verbose",)}, "no --print"),
        ({"argv": (*ARGV, "--settings", "--model=/../../../etc/passwd")}, "expected --settings=value"),
        ({"argv": (*ARGV, "--input-format", "--bg")}, "--bg: this host"),
        ({"argv": ARGV, "files": (PrivateFile("settings", ".json", b'{"a": '),)}, "expected a JSON object"),
        ({"argv": ARGV, "files": (PrivateFile("managed-settings", ".json", b"{}"),)}, "reads none from a file"),
        ({"argv": ARGV, "files": (PrivateFile("plugin-dir", ".zip", b""),)}, "does not take it as a file"),
        ({"argv": ARGV, "files": (PrivateFile("settings", "/../x", b""),)}, "cannot be written"),
        ({"argv": ARGV, "files": (PrivateFile("a=b", ".json", b""),)}, "cannot be written"),
        ({"argv": ARGV, "files": (PrivateFile("plugin-url", ".json", b""),)}, "--plugin-url: this host does not take"),
        (settings_file(env={"PATH": "/tmp"}), "--settings: env: this host does not take 'PATH'"),
        (settings_file(env={"NODE_OPTIONS": "-r /x"}), "does not take 'NODE_OPTIONS'"),
        (settings_file(permissions={"additionalDirectories": ["/etc"]}), "additionalDirectories: '/etc' is not below"),
        ({"argv": ARGV, "initialize": {"managedSettings": {"env": {"LD_PRELOAD": "x"}}}}, "does not take 'LD_PRELOAD'"),
        ({"argv": ARGV, "tail": ("--print", "update")}, "could be a command"),
        ({"argv": ARGV, "cwd": "/"}, "cwd: '/' is not below"),
        ({"argv": ARGV, "cwd": "out"}, "is not below"),
        ({"argv": ARGV, "cwd": ".."}, "is not below"),
        ({"argv": ARGV, "cwd": "a\0b"}, "not a plain path"),
        ({"argv": ARGV, "cwd": "no/where"}, "there is no directory"),
        ({"argv": ARGV, "env": {"PATH": "/tmp"}}, "env: this host does not take 'PATH'"),
        ({"argv": ARGV, "env": {"LD_PRELOAD": None}}, "does not take 'LD_PRELOAD'"),
        ({"argv": ARGV, "env": {"ANTHROPIC_A=B": "x"}}, "does not take"),
        ({"argv": ARGV, "env": {"ANTHROPIC_BASE_URL": "x\0"}}, "cannot be set"),
        *(
            ({"argv": ARGV, "env": {name: "x"}}, f"{name!r}; its operator may: --env NAME")
            for name in REFUSED_VARIABLES
        ),
    ],
)
def test_what_is_refused(policy: HostPolicy, wish: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedRequestError) as refused:
        policy.admit(*asked(**wish))
    assert words in str(refused.value)
    assert "sk-ant" not in str(refused.value)


def test_links_between_roots_and_relative_places(policy: HostPolicy, tmp_path: Path) -> None:
    assert policy.admit(*asked(ARGV, cwd="beside")).cwd == str(tmp_path / "second")
    assert policy.admit(*asked(ARGV)).cwd == str(tmp_path / "root")
    for spelled, real in (("sub", "root/sub"), ("beside", "second"), ("sub/../beside/.", "second")):
        assert policy.admit(*asked((*ARGV, f"--add-dir={spelled}"))).argv[-1] == f"--add-dir={tmp_path / real}"


def test_the_key_of_the_host_does_not_go_to_another_api(policy: HostPolicy) -> None:
    elsewhere = {"ANTHROPIC_BASE_URL": "https://elsewhere.example"}
    assert dict(policy.admit(*asked(ARGV, env=elsewhere)).env) == {"PATH": "/bin", **elsewhere}
    own = {**elsewhere, "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-client"}
    assert policy.admit(*asked(ARGV, env=own)).env["ANTHROPIC_API_KEY"] == "sk-ant-the-key-of-the-client"
    assert "ANTHROPIC_API_KEY" not in policy.admit(*asked(ARGV, env={"ANTHROPIC_API_KEY": None})).env


ELSEWHERE = {"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9/"}}
SERVER = {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${ANTHROPIC_API_KEY}"}}


@pytest.mark.parametrize(
    "settings",
    [
        ELSEWHERE,
        *({"env": {name: "1"}} for name in ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX")),
        {"env": {"OF_THE_OPERATOR": "x"}},
        {"apiKeyHelper": "echo sk-ant-of-the-client"},
        {
            "hooks": {
                "Stop": [{"hooks": [{"type": "http", "url": "http://x/", "allowedEnvVars": ["ANTHROPIC_API_KEY"]}]}]
            }
        },
    ],
)
def test_settings_that_redirect_do_not_get_the_key(
    policy: HostPolicy, tmp_path: Path, settings: dict[str, Any]
) -> None:
    policy = msgspec.structs.replace(policy, env=("OF_THE_OPERATOR",))
    text = json.dumps(settings)
    (tmp_path / "root" / "settings.json").write_text(text)
    for wish in (
        asked((*ARGV, f"--settings={text}")),
        asked((*ARGV, "--settings=settings.json")),
        asked((*ARGV, f"--managed-settings={text}")),
        asked(**settings_file(**settings)),
        asked(ARGV, initialize={"managedSettings": settings}),
    ):
        admitted = policy.admit(*wish)
        assert "ANTHROPIC_API_KEY" not in admitted.env
        given = [file.content.decode() for file in admitted.files]
        given += [argument.partition("=")[2] for argument in admitted.argv if "settings=" in argument]
        assert [json.loads(one) for one in given] == [settings] or wish[1]
    assert "ANTHROPIC_API_KEY" in policy.admit(*asked(**settings_file(model="x", env={"ANTHROPIC_BASE_URL": ""}))).env


def test_servers_that_name_the_key_do_not_get_it(policy: HostPolicy) -> None:
    servers = {"mcpServers": {"s": SERVER}}
    agents = {"a": {"description": "d", "prompt": "p", "mcpServers": [{"s": SERVER}]}}
    for wish in (
        asked((*ARGV, f"--mcp-config={json.dumps(servers)}")),
        asked((*ARGV, f"--agents={json.dumps(agents)}")),
        asked(ARGV, initialize={"agents": agents}),
    ):
        assert "ANTHROPIC_API_KEY" not in policy.admit(*wish).env
    other = {"mcpServers": {"s": {"command": "x", "env": {"BASE_URL": "http://x", "A": "${HOME}"}}}}
    assert "ANTHROPIC_API_KEY" in policy.admit(*asked((*ARGV, f"--mcp-config={json.dumps(other)}"))).env


def test_what_an_operator_does_not_let_clients_have(policy: HostPolicy, tmp_path: Path) -> None:
    sdk = {"mcpServers": {"mine": {"type": "sdk", "name": "mine"}}}
    low = changed(policy, permission_mode="default", programs=False, mcp_servers=False, settings=False)
    low.admit(*asked((*ARGV, "--permission-mode=plan", f"--mcp-config={json.dumps(sdk)}")))
    (tmp_path / "root" / "plugin").mkdir()
    for wish, words in (
        (asked((*ARGV, "--permission-mode=acceptEdits")), "permission modes up to 'default'"),
        (asked((*ARGV, "--permission-mode=newMode")), "permission modes up to 'default'"),
        (asked((*ARGV, "--allow-dangerously-skip-permissions")), "permission modes up to"),
        (asked((*ARGV, "--plugin-dir=plugin")), "takes no plugins of clients"),
        (
            asked((*ARGV, f"--mcp-config={json.dumps({'mcpServers': {'s': SERVER}})}")),
            "takes no MCP servers of clients",
        ),
        (asked((*ARGV, '--settings={"model": "x"}')), "takes no settings of clients"),
        (asked(ARGV, initialize={"agents": {"a": {"permissionMode": "auto"}}}), "permission modes up to"),
        (asked(ARGV, initialize={"agents": {"a": {"hooks": {"Stop": []}}}}), "takes no hooks of clients"),
    ):
        with pytest.raises(RefusedRequestError, match=words):
            low.admit(*wish)
        policy.admit(*wish)
    some = changed(policy, permission_mode="acceptEdits", programs=False)
    for settings, words in (
        ({"permissions": {"defaultMode": "bypassPermissions"}}, "up to 'acceptEdits'"),
        ({"hooks": {"Stop": [1]}}, "takes no hooks"),
        ({"statusLine": {"type": "command"}, "apiKeyHelper": "x"}, "takes no apiKeyHelper, statusLine"),
        ({"aSettingOfTomorrow": "x"}, "takes no aSettingOfTomorrow"),
        ({"sandbox": {"enabled": True, "ripgrep": {"command": "x"}}}, "takes no sandbox.ripgrep"),
    ):
        with pytest.raises(RefusedRequestError, match=words):
            some.admit(*asked(**settings_file(**settings)))
    some.admit(*asked(**settings_file(permissions={"defaultMode": "acceptEdits"}, hooks={})))


def test_settings_that_an_operator_forces(policy: HostPolicy) -> None:
    forced = {"permissions": {"deny": ["Bash"]}}
    held = changed(policy, managed_settings=forced)
    name, _, value = held.admit(*asked(ARGV)).argv[2].partition("=")
    sent = json.loads(value)
    assert (name, sent["permissions"]["deny"][0]) == ("--managed-settings", "Bash")
    for wish in (
        asked((*ARGV, "--managed-settings={}")),
        asked((*ARGV, "--managed-settings-in-initialize")),
        asked(ARGV, initialize={"managedSettings": {"a": 1}}),
    ):
        with pytest.raises(RefusedRequestError, match="of this host apply"):
            held.admit(*wish)


def test_flags_that_an_operator_allows(policy: HostPolicy) -> None:
    with pytest.raises(RefusedRequestError, match="--allow-flag brief"):
        policy.admit(*asked((*ARGV, "--brief")))
    # Last, also if it takes a value: it must not swallow what the host adds.
    given = (*ARGV, "--brief")
    assert changed(policy, flags=("brief",)).admit(*asked(given)).argv == ("--permission-mode=default", *given)
    for wrong in (
        {"flags": ("--brief",)},
        {"permission_mode": "root"},
        {"managed_settings": {"a": "x" * 70_000}},
        {"managed_settings": {"a": object()}},
    ):
        with pytest.raises(UsageError):
            ClientLimits(**wrong)  # type: ignore[arg-type]


# What a client says while its session runs.


def line(subtype: str, **body: Any) -> bytes:
    request = {"subtype": subtype, **body}
    return json.dumps({"type": "control_request", "request_id": "r1", "request": request}).encode() + b"\n"


def test_requests_that_would_send_the_key_elsewhere(policy: HostPolicy) -> None:
    check = InputFilter(policy).check_line
    for sent in (
        line("apply_flag_settings", settings=ELSEWHERE),
        line("update_settings", source="userSettings", settings=ELSEWHERE),
        line("initialize", managedSettings=ELSEWHERE),
        line("mcp_set_servers", servers={"s": SERVER}),
        line("apply_flag_settings", settings={"env": {"PATH": "/tmp"}}),
        line("apply_flag_settings", settings=ELSEWHERE).replace(b"control_request", b"control\\u005frequest"),
    ):
        with pytest.raises(ControlRequestRefusedError) as refused:
            check(sent)
        answer = json.loads(refused.value.make_response())["response"]
        assert (answer["subtype"], answer["request_id"]) == ("error", "r1")
    deep = line("x").replace(b'"x"', b"[" * 100_000 + b"]" * 100_000)
    for sent in (b'{"type": "update_environment_variables", "variables": {}}\n', b"x\r" + line("interrupt"), deep):
        with pytest.raises(ProtocolError):
            check(sent)
    for sent in (
        line("set_permission_mode", mode="bypassPermissions"),
        line("anything"),
        b"no JSON\n",
        b'{"type": "\n',
    ):
        assert check(sent) == sent


LOGINS = (
    "claude_authenticate", "claude_oauth_callback", "claude_oauth_wait_for_completion",
    "mcp_authenticate", "mcp_clear_auth", "mcp_oauth_callback_url",
)  # fmt: skip


def test_requests_above_the_limits(policy: HostPolicy) -> None:
    check = InputFilter(changed(policy, permission_mode="default", mcp_servers=False)).check_line
    for sent, words in (
        (line("set_permission_mode", mode="bypassPermissions"), "up to 'default'"),
        (line("apply_flag_settings", settings={"permissions": {"defaultMode": "auto"}}), "up to 'default'"),
        (line("initialize", agents={"a": {"permissionMode": "acceptEdits"}}), "up to 'default'"),
        (line("mcp_set_servers", servers={"s": {"command": "x"}}), "takes no MCP servers"),
        (line("start_shell_task", command="x"), "does not take control requests 'start_shell_task'"),
        (line("get_workspace_diff"), "does not take control requests 'get_workspace_diff'"),
        (line("side_question", question="x"), "does not take control requests 'side_question'"),
        (line("generate_session_title", description="x"), "does not take"),
        *((line(login), f"does not take control requests '{login}'") for login in LOGINS),
        (line("set_mcp_permission_mode_override", mode="plan"), "does not take"),
    ):
        with pytest.raises(ControlRequestRefusedError, match=words):
            check(sent)
    update = {"type": "setMode", "mode": "bypassPermissions", "destination": "session"}
    body: dict[str, Any] = {"behavior": "allow", "updatedPermissions": [update]}
    answer = {"type": "control_response", "response": {"subtype": "success", "request_id": "1", "response": body}}
    for sent in (json.dumps(answer).encode(), b'{"type": "bash_command", "command": "x"}\n'):
        with pytest.raises(ProtocolError, match="this host"):
            check(sent)
    body["updatedInput"] = {"x": body.pop("updatedPermissions")}
    for fine in (
        json.dumps(answer).encode(),
        line("set_permission_mode", mode="plan"),
        line("get_plan"),
        line("mcp_set_servers", servers={}),
    ):
        assert check(fine) == fine


def test_prompts_as_they_are(policy: HostPolicy) -> None:
    verbatim = changed(policy, verbatim_prompts=True)
    sent = {"type": "user", "message": {"role": "user", "content": "@/etc/passwd"}}
    for given in (sent, {**sent, "client_composed": False}):
        passed = json.loads(InputFilter(verbatim).check_line(json.dumps(given).encode()))
        assert passed == {**sent, "client_composed": True}
    assert InputFilter(policy).check_line(json.dumps(sent).encode()) == json.dumps(sent).encode()
    with pytest.raises(RefusedRequestError, match="through stdin"):
        verbatim.admit(*asked(ARGV, tail=("--print", "@/etc/passwd is this")))


def test_every_variable_that_options_send_is_taken() -> None:
    def names(target: Any) -> set[str]:
        parts = target.targets if isinstance(target, SplitTarget) else (target,)
        return {part.name for part in parts if isinstance(part, EnvVar | EnvSwitch)}

    sent = {name for option in CLIENT_OPTIONS for name in names(TABLE[option].target)}
    assert sent <= CLIENT_VARIABLES
    assert not any("*" in name for name in CLIENT_VARIABLES)


def test_what_owners_of_further_tokens_start_with(policy: HostPolicy) -> None:
    ann = policy.for_owner(Owner("ann"))
    assert ann.admit(*asked(ARGV)).argv[:2] == ("--permission-mode=default", "--setting-sources=user")
    assert ann.admit(*asked((*ARGV, "--permission-mode=plan", "--setting-sources="))).argv[-1] == "--setting-sources="
    for source in ("project", "user,local"):
        with pytest.raises(RefusedRequestError, match="not allowed here, but user"):
            ann.admit(*asked((*ARGV, f"--setting-sources={source}")))
    assert ann.is_verbatim
    more = changed(ann, setting_sources=("user", "project"), verbatim_prompts=False)
    assert more.admit(*asked(ARGV)).argv[1] == "--setting-sources=user,project"
    assert not more.is_verbatim
    # The operator's own sessions begin as `claude` does, until a limit is set.
    assert policy.admit(*asked(ARGV)).argv == ("--permission-mode=default", *ARGV)
    assert "--setting-sources=user" in changed(policy, programs=False).admit(*asked(ARGV)).argv
    low = changed(policy, permission_mode="plan").admit(*asked(ARGV)).argv
    assert "--permission-mode=plan" in low


def test_sessions_of_clients_have_no_memory_of_a_directory(policy: HostPolicy) -> None:
    for client in (policy.for_owner(Owner("ann")), changed(policy, programs=False)):
        made = client.admit(*asked(ARGV))
        assert made.env["CLAUDE_CODE_DISABLE_AUTO_MEMORY"] == "1"
        assert made.explicit_env["CLAUDE_CODE_DISABLE_AUTO_MEMORY"] == "1"  # for children elsewhere
        with pytest.raises(RefusedRequestError, match="does not take 'CLAUDE_CODE_DISABLE_AUTO_MEMORY'"):
            client.admit(*asked(ARGV, env={"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "0"}))
    assert "CLAUDE_CODE_DISABLE_AUTO_MEMORY" not in policy.admit(*asked(ARGV)).env


def test_limits_become_managed_settings(policy: HostPolicy) -> None:
    assert policy.for_owner(Owner("ann")).managed_settings is None
    forced = {"permissions": {"deny": ["Bash"]}, "allowedMcpServers": [{"serverName": "mine"}], "x": 1}
    low = changed(policy, programs=False, mcp_servers=False, permission_mode="default", managed_settings=forced)
    made = dict(low.managed_settings or {})
    permissions = made.pop("permissions")
    assert made == {
        "allowManagedHooksOnly": True,
        "allowManagedMcpServersOnly": True,
        "allowedMcpServers": [{"serverName": "mine"}],  # the operator's own word
        "disableSkillShellExecution": True,
        "strictKnownMarketplaces": [],
        "x": 1,
    }
    assert permissions["disableBypassPermissionsMode"] == "disable"
    assert permissions["deny"][0] == "Bash"
    assert any(rule.startswith("Edit(//") and rule.endswith("/.claude/*.json)") for rule in permissions["deny"])


def test_yes_to_a_call_changes_no_settings_file(policy: HostPolicy) -> None:
    def answer(*updates: dict[str, Any]) -> bytes:
        body = {"behavior": "allow", "updatedPermissions": list(updates)}
        return json.dumps({"type": "control_response", "response": {"request_id": "1", "response": body}}).encode()

    check = InputFilter(policy.for_owner(Owner("ann"))).check_line
    rule = {"type": "addRules", "behavior": "allow", "rules": [{"toolName": "Bash"}], "destination": "userSettings"}
    [passed] = json.loads(check(answer(rule)))["response"]["response"]["updatedPermissions"]
    assert passed == {**rule, "destination": "session"}
    with pytest.raises(ProtocolError, match="is not below"):
        check(answer({"type": "addDirectories", "directories": ["/"], "destination": "session"}))
    assert InputFilter(policy).check_line(answer(rule)) == answer(rule)  # the operator's own


def test_handshakes_with_fields_that_no_list_has(policy: HostPolicy) -> None:
    low = changed(policy, programs=False, mcp_servers=False)
    for fields, words in (
        ({"plugins": [{"type": "local", "path": "/x"}]}, "no plugins"),
        ({"mcpServers": {"s": {"command": "x"}}}, "no MCP servers"),
        ({"ofTomorrow": 1}, "does not take 'ofTomorrow'"),
        ({"agents": {"a": {"description": "d", "prompt": "p", "ofTomorrow": "x"}}}, "no ofTomorrow"),
    ):
        with pytest.raises(ControlRequestRefusedError, match=words):
            InputFilter(low).check_line(line("initialize", **fields))
    fine = line("initialize", hooks={"Stop": []}, sdkMcpServers=["s"], agents={"a": {"description": "d", "prompt": ""}})
    assert InputFilter(low).check_line(fine) == fine


OF_THE_HOST = {
    "asks", "callback_wrapper", "can_use_tool", "cli", "config_dir", "confirm", "debug_file", "files", "hooks",
    "inherit_env", "instrumentation", "isolation", "keep_detached", "max_line_bytes", "middleware", "on_elicitation",
    "on_plan", "on_question", "on_user_dialog", "project_config_root", "prompt_via", "session_lease",
    "session_store_flush", "stderr", "transport", "user", "worktree",
}  # fmt: skip


def test_every_option_is_the_clients_or_the_hosts() -> None:
    assert TABLE.keys() == CLIENT_OPTIONS | OF_THE_HOST  # a new option needs a decision
    assert not CLIENT_OPTIONS & OF_THE_HOST
    flags = {flag for name in CLIENT_OPTIONS for flag in list_flags(TABLE[name].target)}
    assert flags <= ALLOWED_FLAGS.keys()
    assert not {"debug-file", "project-config-root", "remote", "rc", "cloud", "worktree"} & ALLOWED_FLAGS.keys()
    assert not {"plugin-url", "sdk-url", "dangerously-skip-permissions"} & ALLOWED_FLAGS.keys()
