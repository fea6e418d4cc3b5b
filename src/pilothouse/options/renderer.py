"""Renders `Options` and a prompt to an `Invocation`.

Pure: the base environment is an argument. Every value is bound to its flag with `=`, so that no value can become a
flag; long values and possible secrets never reach the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from pilothouse.errors import OptionsError
from pilothouse.options.invocation import ChildEnvironment, ExplicitEnvironment, InitializeBody, Invocation, PrivateFile
from pilothouse.options.table import TABLE
from pilothouse.options.targets import (
    ConfigFlag,
    EnvSwitch,
    EnvVar,
    Flag,
    InitializeField,
    Internal,
    JsonFlag,
    ListFlag,
    PartOfOption,
    PathFlag,
    RepeatedFlag,
    SplitTarget,
    Switch,
    SwitchOrFlag,
    Target,
    TextFlag,
)
from pilothouse.options.values import OptionValues

Values = dict[str, Any]

SKILL_SETTING_SOURCES = ["user", "project"]
"""Default of `setting_sources` when `skills` is set: skills are found next to these settings."""


def derive_values(values: Mapping[str, Any]) -> Values:
    """Return the values to render: without None, nested values in the form for the CLI."""
    found = {name: value for name, value in values.items() if value is not None}
    for name, rule in _DERIVATIONS.items():
        if name in found:
            rule(found)
    return found


def _make_encoder(name: str) -> Callable[[Values], None]:
    def rule(values: Values) -> None:
        from pilothouse.options.struct_validation import WIRE_ENCODERS  # nested values are rare

        if not isinstance(values[name], str):
            values[name] = WIRE_ENCODERS[name](values[name])

    return rule


def _derive_servers(values: Values) -> None:
    given = values["mcp_servers"]
    _make_encoder("mcp_servers")(values)
    if given and not values["mcp_servers"]:  # all servers run in this process
        del values["mcp_servers"]


def _derive_skills(values: Values) -> None:
    skills = values["skills"]
    rules = ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills]
    allowed = values.get("allowed_tools", [])
    if rules:
        values["allowed_tools"] = [*allowed, *(rule for rule in rules if rule not in allowed)]
    values.setdefault("setting_sources", SKILL_SETTING_SOURCES)


def _derive_thinking(values: Values) -> None:
    values.pop("max_thinking_tokens", None)  # older form of a part of `thinking`


def _derive_sandbox(values: Values) -> None:
    _make_encoder("sandbox")(values)
    settings = values.get("settings", {})
    if isinstance(settings, str):  # a path excludes a sandbox, so this is JSON
        settings = msgspec.json.decode(settings.encode())
    values["settings"] = {**settings, "sandbox": values["sandbox"]}


def _derive_isolation(values: Values) -> None:
    values["setting_sources"] = []
    values["strict_mcp_config"] = True
    values.setdefault("persist_session", "session_store" in values)  # else it is deleted with the home


_DERIVATIONS: dict[str, Callable[[Values], None]] = {
    "isolation": _derive_isolation,  # first, because others set sources only if there are none
    "agents": _make_encoder("agents"),
    "mcp_servers": _derive_servers,
    "sandbox": _derive_sandbox,
    "skills": _derive_skills,
    "thinking": _derive_thinking,
}


ENTRYPOINT = "sdk-pilothouse"
COMMON_ARGS = ("--output-format", "stream-json", "--verbose")
STDIN_ARGS = ("--print", "--input-format", "stream-json")

# One argument may be 131,072 bytes on Linux and a whole Windows command line 32,767 characters; longer values go
# through a file or the handshake, where possible.
MAX_INLINE_BYTES = 8 * 1024
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_JOINED_BYTES = 64 * 1024
"""Maximum bytes of a list joined into one argument."""

_TABLE_ORDER = {name: place for place, name in enumerate(TABLE)}

# Set by a Claude Code that runs this process; with them, a child refuses to start or takes itself for a nested one.
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")


class _InvocationBuilder:
    def __init__(self, *, has_initialize: bool) -> None:
        self.argv: list[str] = []
        self.files: list[PrivateFile] = []
        self.initialize: dict[str, Any] = {}
        self.has_initialize = has_initialize

    def add_flag(self, option: str, name: str, value: str) -> None:
        argument = f"--{name}={value}"
        size = _size(argument)
        if size > MAX_ARGUMENT_BYTES:
            raise OptionsError(
                f"option {option!r}: {size:,} bytes do not fit into one argument (at most {MAX_ARGUMENT_BYTES:,})",
                option=option,
            )
        self.argv.append(argument)

    def add_initialize_field(self, option: str, key: str, value: Any) -> None:
        if not self.has_initialize:
            raise OptionsError(
                f"option {option!r}: this value travels in the handshake, which the argv form does not have; "
                "use prompt_via='stdin'",
                option=option,
            )
        self.initialize[key] = value


def render(options: OptionValues, environ: Mapping[str, str], *, prompt: str | None = None) -> Invocation:
    """Render `options` for a child whose environment is based on `environ`.

    Args:
        options: the settings.
        environ: base environment, used when `inherit_env` is set.
        prompt: the prompt, only for the argv form; None when it travels through stdin.

    Raises:
        OptionsError: a value does not fit the form of the invocation.
    """
    draft = _make_builder(options, has_initialize=prompt is None)
    changes = _env_changes(options)
    head = (*COMMON_ARGS, *STDIN_ARGS) if prompt is None else COMMON_ARGS
    return Invocation(
        cli=options.cli,
        argv=(*head, *draft.argv),
        trailing_args=() if prompt is None else _make_prompt_args(prompt),
        env=_make_child_env(options, environ, changes),
        cwd=None if options.cwd is None else _expand_home(options.cwd),
        initialize=InitializeBody(draft.initialize) if draft.has_initialize else None,
        files=tuple(draft.files),
        on_stderr=options.stderr,
        user=options.user,
        is_isolated=options.isolation is not None,
        explicit_env=ExplicitEnvironment(changes),
    )


def render_cli_args(options: OptionValues) -> list[str]:
    """Return the arguments for the options that were set, without the arguments of every invocation."""
    draft = _make_builder(options, has_initialize=True)
    return [*draft.argv, *(f"--{file.flag}=<private file>" for file in draft.files)]


def render_env(options: OptionValues) -> dict[str, str]:
    """Return the environment variables that options set."""
    changes = _env_changes(options)
    return {name: value for name, value in changes.items() if value is not None}


def render_child_env(options: OptionValues, environ: Mapping[str, str]) -> ChildEnvironment:
    """Return the complete environment of the child."""
    return _make_child_env(options, environ, _env_changes(options))


def _make_child_env(
    options: OptionValues, environ: Mapping[str, str], changes: Mapping[str, str | None]
) -> ChildEnvironment:
    env = ChildEnvironment(environ if options.inherit_env else {})
    for name in _NOT_INHERITED:
        env.pop(name, None)
    if options.isolation is not None:
        from pilothouse.options.isolation import inherit_variables  # few children are isolated

        env = ChildEnvironment(inherit_variables(env))
    env["CLAUDE_CODE_ENTRYPOINT"] = ENTRYPOINT
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def _env_changes(options: OptionValues) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for _, target, value in _split_values(options.as_dict()):
        if isinstance(target, EnvVar):
            changes[target.name] = _format_variable(target, value)
        elif isinstance(target, EnvSwitch):
            changes[target.name] = target.value if value == target.on else None
    return {**changes, **(options.env or {})}


def _format_variable(target: EnvVar, value: Any) -> str | None:
    if value is None:
        return None
    return _expand_home(value) if target.path else _format_number(value)


def _make_builder(options: OptionValues, *, has_initialize: bool) -> _InvocationBuilder:
    draft = _InvocationBuilder(has_initialize=has_initialize)
    for name, target, value in _split_values(derive_values(options.as_dict())):
        _RENDERERS[type(target)](draft, name, target, value)
    for flag, value in (options.extra_args or {}).items():
        if value is None:
            draft.argv.append(f"--{flag}")
        else:
            draft.add_flag("extra_args", flag, value)
    return draft


def _split_values(values: Mapping[str, Any]) -> Iterator[tuple[str, Target, Any]]:
    """Return the parts of all values with their targets, in the order of the table."""
    for name in sorted(values, key=_TABLE_ORDER.__getitem__):  # sorted, because few options are set
        value, target = values[name], TABLE[name].target
        if value is None:
            continue
        if isinstance(target, SplitTarget):
            for part, piece in target.split(value):
                yield name, part, piece
        else:
            yield name, target, value


def _make_prompt_args(prompt: str) -> tuple[str, ...]:
    size = _size(prompt)
    if size > MAX_ARGUMENT_BYTES:
        raise OptionsError(
            f"option 'prompt_via': a prompt of {size:,} bytes does not fit into one argument "
            f"(at most {MAX_ARGUMENT_BYTES:,}); leave it at 'stdin'",
            option="prompt_via",
        )
    # The prompt is last and positional; "--" only where it would read as a flag.
    return ("--print", "--", prompt) if prompt.startswith("-") else ("--print", prompt)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _expand_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - `Path.expanduser` raises when there is no home


def _format_number(value: Any) -> str:
    # 2.0 becomes 2 and 0.001 stays 0.001; repr would give 1e-05, which the CLI reads as well.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _render_flag(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    draft.add_flag(
        name, target.name, ",".join(cast("list[str]", value)) if isinstance(value, list) else _format_number(value)
    )


def _render_list(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        draft.add_flag(name, target.name, value)
        return
    joined: list[str] = []
    size = 0
    for item in value:
        if joined and size + _size(item) >= MAX_JOINED_BYTES:
            draft.add_flag(name, target.name, ",".join(joined))
            joined, size = [], 0
        joined.append(item)
        size += _size(item) + 1
    draft.add_flag(name, target.name, ",".join(joined))


def _render_path(draft: _InvocationBuilder, name: str, target: Any, value: str) -> None:
    draft.add_flag(name, target.name, _expand_home(value))


def _render_repeated(draft: _InvocationBuilder, name: str, target: Any, value: list[str]) -> None:
    for item in value:
        draft.add_flag(name, target.name, _expand_home(item))


def _render_switch(draft: _InvocationBuilder, name: str, target: Any, value: bool) -> None:
    if value == target.on:
        draft.argv.append(f"--{target.name}")


def _render_switch_or_flag(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        draft.add_flag(name, target.name, value)
    elif value:
        draft.argv.append(f"--{target.name}")


def _render_text(draft: _InvocationBuilder, name: str, target: Any, value: str) -> None:
    if _size(value) <= MAX_INLINE_BYTES:
        draft.add_flag(name, target.name, value)
    elif target.file_flag:
        draft.files.append(PrivateFile(target.file_flag, ".txt", value.encode()))
    else:
        draft.add_initialize_field(name, target.key, value)


def _render_config(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        if _size(value) <= MAX_INLINE_BYTES and not value.lstrip().startswith("{"):
            draft.add_flag(name, target.name, _expand_home(value))
        else:
            draft.files.append(PrivateFile(target.name, ".json", value.encode()))
        return
    body = {target.wrap: value} if target.wrap else value
    draft.files.append(PrivateFile(target.name, ".json", _encode_json(name, body)))


def _render_json(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    content = _encode_json(name, value)
    if target.private and not draft.has_initialize and not target.switches:
        draft.files.append(PrivateFile(target.name, ".json", content))
    elif len(content) <= MAX_INLINE_BYTES and not target.private:
        draft.add_flag(name, target.name, content.decode())
    else:
        draft.add_initialize_field(name, target.key, msgspec.json.decode(content))
        draft.argv.extend(f"--{switch}" for switch in target.switches)


def _render_initialize(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    if value is not False:  # False is the default of the CLI
        draft.add_initialize_field(name, target.key, value)


def _encode_json(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"option {name!r} cannot be written as JSON: {error}", option=name) from error


def _render_nothing(draft: _InvocationBuilder, name: str, target: Any, value: Any) -> None:
    """Render nothing: environment variables and pilothouse's own options are not on the command line."""


_RENDERERS: dict[type, Callable[[_InvocationBuilder, str, Any, Any], None]] = {
    ConfigFlag: _render_config,
    EnvSwitch: _render_nothing,
    EnvVar: _render_nothing,
    Flag: _render_flag,
    InitializeField: _render_initialize,
    JsonFlag: _render_json,
    PartOfOption: _render_nothing,
    ListFlag: _render_list,
    PathFlag: _render_path,
    RepeatedFlag: _render_repeated,
    Internal: _render_nothing,
    Switch: _render_switch,
    SwitchOrFlag: _render_switch_or_flag,
    TextFlag: _render_text,
}
