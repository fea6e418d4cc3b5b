"""The state of one session of the engine, shared by all its parts.

Owns the set of tools, the model and its settings, and the content of a request. Runs no turn.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pilothouse.json_schema import make_checker
from pilothouse.permissions import RuleSet
from pilothouse_native.api import MessagesApi
from pilothouse_native.configuration import EngineSettings
from pilothouse_native.flags import EngineArguments
from pilothouse_native.history import History
from pilothouse_native.hooks import HookOutcome, HookRunner
from pilothouse_native.mcp import McpServers, McpTool
from pilothouse_native.models import LONG_CONTEXT_BETA, SessionTotals, get_model, has_long_context, resolve_model
from pilothouse_native.permissions import make_hidden_filter
from pilothouse_native.prompts import IDENTITY, STRUCTURED_DESCRIPTION, describe_environment
from pilothouse_native.tools.base import BuiltinTool, Workplace
from pilothouse_native.tools.session_tools import INTERACTIVE_TOOLS
from pilothouse_native.wire import JsonObject, Wire, as_list
from pilothouse_transcripts.paths import find_home

T = TypeVar("T")
STRUCTURED_TOOL_NAME: Final = "StructuredOutput"
DEFAULT_RETRIES: Final = 10
DEFAULT_THINKING_TOKENS: Final = 31_999
"""Thinking budget when thinking is enabled without a number, on models that have a budget."""
MIN_THINKING_TOKENS: Final = 1024
EPHEMERAL: Final = {"type": "ephemeral"}


class SessionState:
    """One session. Its `schema` is that of the structured output, if one is wanted."""

    def __init__(
        self,
        arguments: EngineArguments,
        settings: EngineSettings,
        env: Mapping[str, str],
        wire: Wire,
        history: History,
        workplace: Workplace,
        api: MessagesApi,
        tools: Mapping[str, BuiltinTool] | None,
    ) -> None:
        self.arguments, self.settings, self.env = arguments, settings, env
        self.wire, self.history, self.workplace, self.api = wire, history, workplace, api
        self.set_rules(RuleSet.parse(allow=settings.allow, ask=settings.ask, deny=settings.deny))
        self.hooks = HookRunner(wire)
        self.servers = McpServers(wire)
        self.totals = SessionTotals()
        self.totals.restore(history.cost_row)
        self.permission_mode = settings.permission_mode or "default"
        self.requested_model = arguments.model or settings.model
        self.model = resolve_model(self.requested_model, env)
        self.effort = arguments.effort or settings.effort
        self.thinking_tokens = _parse_int(env.get("MAX_THINKING_TOKENS"), None)
        if arguments.max_thinking_tokens is not None:
            self.thinking_tokens = arguments.max_thinking_tokens
        self.initialize_request: JsonObject = {}
        self.memory = ""
        self.started_at = time.monotonic()
        self.result_count = 0
        self.schema: JsonObject | None = arguments.json_schema
        self._validators: dict[str, tuple[Mapping[str, Any], Callable[[Any], Sequence[Any]]]] = {}
        self._builtin = _load_builtin_tools() if tools is None else tools

    def set_rules(self, rules: RuleSet) -> None:
        """Replace the rules. Searches hide the paths that a rule denies to read."""
        self.rules = rules
        self.workplace.is_hidden = make_hidden_filter(rules, self.workplace)

    # Models.

    def set_model(self, name: str | None) -> str:
        """Change the model; None for the initial one. Returns its full name."""
        given = name or self.arguments.model or self.settings.model
        self.model, self.requested_model = resolve_model(given, self.env), given
        return self.model

    @property
    def max_retries(self) -> int:
        """How often a failed request is retried."""
        return _parse_int(self.env.get("CLAUDE_CODE_MAX_RETRIES"), DEFAULT_RETRIES)

    @property
    def max_output(self) -> int:
        """Token limit of one reply."""
        return _parse_int(self.env.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS"), get_model(self.model).max_output)

    @property
    def betas(self) -> tuple[str, ...]:
        """Beta features for a request."""
        return (*self.arguments.betas, *((LONG_CONTEXT_BETA,) if has_long_context(self.requested_model) else ()))

    # Tools.

    def list_tools(self) -> dict[str, BuiltinTool | McpTool]:
        """Return the current tools, by name."""
        wanted = self.arguments.tools
        own = {**self._builtin, **(INTERACTIVE_TOOLS if self.has_approver else {})}
        found: dict[str, BuiltinTool | McpTool] = {
            name: tool for name, tool in own.items() if wanted is None or "default" in wanted or name in wanted
        }
        found |= self.servers.list_tools()
        removed = [rule for rule in self.settings.deny if "(" not in rule]
        return {name: tool for name, tool in found.items() if not any(_rule_covers(name, rule) for rule in removed)}

    @property
    def has_approver(self) -> bool:
        """Whether there is someone who answers permission requests."""
        return self.arguments.permission_prompt_tool is not None and self.arguments.permission_prompts != "none"

    def get_validator(self, name: str, schema: Mapping[str, Any]) -> Callable[[Any], Sequence[Any]]:
        """Return the check for a tool's input, which lists the violations; compiled once."""
        known = self._validators.get(name)
        if known is None or known[0] is not schema:
            known = self._validators[name] = schema, make_checker(schema)
        return known[1]

    # Requests.

    def make_system_prompt(self) -> list[JsonObject]:
        """Make the system prompt as blocks; the last one has the cache mark."""
        prompt: Any = self.initialize_request.get("systemPrompt")
        parts: list[str] = [prompt] if isinstance(prompt, str) else [str(part) for part in as_list(prompt)]
        if not parts:
            parts = [IDENTITY if self.arguments.system_prompt is None else self.arguments.system_prompt]
        parts += [self.arguments.append_system_prompt or "", self.initialize_request.get("appendSystemPrompt") or ""]
        parts.append(self.memory)
        if not self.arguments.bare:
            parts.append(describe_environment(self.workplace.cwd, self.workplace.directories, self.model))
        blocks = [{"type": "text", "text": part} for part in parts if part.strip()]
        return self._mark_last_cached(blocks)

    def make_request(self, messages: list[JsonObject] | None = None) -> JsonObject:
        """Make a request of the Messages API, with the conversation so far or with other messages."""
        shown = self.history.make_request_messages() if messages is None else messages
        head = {"model": self.model, "max_tokens": self.max_output, "messages": self._mark_messages_cached(shown)}
        options: JsonObject = {
            "system": self.make_system_prompt(),
            "tools": self._make_tool_definitions(),
            "thinking": self._make_thinking(),
            "output_config": None if self.effort is None else {"effort": self.effort},
        }
        return head | {name: value for name, value in options.items() if value}

    def _make_tool_definitions(self) -> list[JsonObject]:
        found: list[JsonObject] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.input_schema)}
            for tool in self.list_tools().values()
        ]
        if self.schema is not None:
            found.append(
                {"name": STRUCTURED_TOOL_NAME, "description": STRUCTURED_DESCRIPTION, "input_schema": self.schema}
            )
        return self._mark_last_cached(found)

    def _mark_last_cached(self, blocks: list[JsonObject]) -> list[JsonObject]:
        """Put the cache mark on the last block: the next request reads everything up to it from the cache."""
        if not blocks or self.env.get("DISABLE_PROMPT_CACHING"):
            return blocks
        return [*blocks[:-1], blocks[-1] | {"cache_control": EPHEMERAL}]

    def _mark_messages_cached(self, messages: list[JsonObject]) -> list[JsonObject]:
        if not messages:
            return messages
        last = messages[-1]
        blocks: list[JsonObject] = last["content"]
        if not blocks or blocks[-1].get("type") in {"thinking", "redacted_thinking"}:
            return messages
        return [*messages[:-1], last | {"content": self._mark_last_cached(blocks)}]

    def _make_thinking(self) -> JsonObject | None:
        kind, tokens = self.arguments.thinking, self.thinking_tokens
        if kind == "disabled" or tokens == 0:
            return None
        display = self.arguments.thinking_display
        shown = {"display": display} if display in {"summarized", "omitted"} else {}
        if get_model(self.model).adaptive:
            return {"type": "adaptive", **shown}
        if tokens is None and kind is None:
            return None
        budget = min(tokens or DEFAULT_THINKING_TOKENS, self.max_output - 1)
        return {"type": "enabled", "budget_tokens": max(budget, MIN_THINKING_TOKENS), **shown}

    async def run_hooks(
        self, event: str, fields: JsonObject, *, subject: str | None = None, key: str = "", has_mode: bool = True
    ) -> HookOutcome:
        """Run the hooks of an event, with the fields that all hooks have; see `HookRunner.run`."""
        about: JsonObject = {
            "session_id": self.history.session_id,
            "transcript_path": str(self.history.path),
            "cwd": str(self.workplace.cwd),
            "prompt_id": self.history.prompt_id,
        }
        about |= {"permission_mode": self.permission_mode} if has_mode else {}
        return await self.hooks.run(event, about | fields, subject=subject, key=key)

    def start_new_session(self) -> str:
        """Start a new session with the same settings and an empty conversation. Returns its id."""
        self.history.restart(str(uuid.uuid4()))
        self.wire.session_id = self.history.session_id
        self.workplace.files_read.clear()
        return self.history.session_id


def _load_builtin_tools() -> Mapping[str, BuiltinTool]:
    from pilothouse_native.tools import BUILTIN_TOOLS

    return BUILTIN_TOOLS


def find_config_dir(env: Mapping[str, str]) -> Path:
    """Return the configuration directory of the CLI in this environment."""
    given = env.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else find_home(env) / ".claude"


def _parse_int(text: str | None, default: T) -> int | T:
    return int(text) if text and text.isdigit() else default


def _rule_covers(name: str, rule: str) -> bool:
    """Whether a rule without a condition names the tool, or its whole server."""
    return name == rule or name.startswith(f"{rule}__") or (rule.endswith("__*") and name.startswith(rule[:-1]))
