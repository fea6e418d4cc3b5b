"""The state of one session of the engine: what every part of it looks at.

Owns which tools there are, which model is asked and how, and what a request looks like. Runs nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pilothouse.json_schema import Check, checker
from pilothouse.native.history import History
from pilothouse.native.hooks import Hooks
from pilothouse.native.interaction import INTERACTIVE
from pilothouse.native.launch import Launch
from pilothouse.native.mcp import McpServers, McpTool
from pilothouse.native.models import LONG_BETA, is_long, model_of, resolve
from pilothouse.native.permissions import Rules, hidden
from pilothouse.native.prompts import IDENTITY, STRUCTURED_TOOL, surroundings
from pilothouse.native.settings import Settings
from pilothouse.native.shapes import JSON, items
from pilothouse.native.spending import Spending
from pilothouse.native.tools.base import BuiltinTool, ToolLike, Workplace
from pilothouse.native.wire import Wire

STRUCTURED: Final = "StructuredOutput"
DEFAULT_RETRIES: Final = 10
THINKING_TOKENS: Final = 31_999
"""Budget of thinking when it is switched on without a number, on models that have one."""
LEAST_THINKING: Final = 1024
EPHEMERAL: Final = {"type": "ephemeral"}


class State:
    """One session.

    Args:
        launch: what the command line said.
        settings: what settings files said.
        env: the environment.
        wire, history, workplace, rules: its parts.
        builtin: the tools of the engine, by name.

    Attributes:
        mode: permission mode.
        model: full name of the model.
        told: body of the `initialize` request.
        memory: what CLAUDE.md files say.
        schema: check of the structured output, if one is wanted.
    """

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        env: Mapping[str, str],
        wire: Wire,
        history: History,
        workplace: Workplace,
        rules: Rules,
        builtin: Mapping[str, BuiltinTool],
    ) -> None:
        self.launch, self.settings, self.env = launch, settings, env
        self.wire, self.history, self.workplace = wire, history, workplace
        self.have_rules(rules)
        self.hooks = Hooks(wire)
        self.servers = McpServers(wire)
        self.spending = Spending()
        self.mode = settings.mode or "default"
        self.given_model = launch.model or settings.model
        self.model = resolve(self.given_model, env)
        self.effort = launch.effort or settings.effort
        self.thinking_tokens = _thinking_tokens(launch, env)
        self.told: JSON = {}
        self.memory = ""
        self.started = time.monotonic()
        self.results = 0
        self.schema: JSON | None = launch.json_schema
        self._checks: dict[str, Check] = {}
        self._builtin = builtin

    def have_rules(self, rules: Rules) -> None:
        """From now on these rules hold. What one denies to read, searches do not show either."""
        self.rules = rules
        self.workplace.hidden = hidden(rules, self.workplace)

    # Models.

    def choose(self, name: str | None) -> str:
        """Ask another model from now on; None: the one of the beginning. Gives its full name."""
        given = name or self.launch.model or self.settings.model
        self.model, self.given_model = resolve(given, self.env), given
        return self.model

    @property
    def max_retries(self) -> int:
        """How often a failed request is sent again."""
        return _whole(self.env.get("CLAUDE_CODE_MAX_RETRIES"), DEFAULT_RETRIES)

    @property
    def max_output(self) -> int:
        """Tokens of one reply, at most."""
        return _whole(self.env.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS"), model_of(self.model).max_output)

    @property
    def betas(self) -> tuple[str, ...]:
        """Beta features for a request."""
        return (*self.launch.betas, *((LONG_BETA,) if is_long(self.given_model) else ()))

    # Tools.

    def tools(self) -> dict[str, BuiltinTool | McpTool]:
        """The tools that there are now, by name."""
        wanted = self.launch.tools
        everything = wanted is None or "default" in wanted
        somebody = self.launch.prompt_tool is not None and not self.launch.nobody_asked
        own = {**self._builtin, **(INTERACTIVE if somebody else {})}
        found: dict[str, BuiltinTool | McpTool] = {
            name: tool for name, tool in own.items() if everything or name in (wanted or ())
        }
        found |= {tool.name: tool for tool in self.servers.tools()}
        for rule in self.settings.deny:
            if "(" not in rule:
                found = {name: tool for name, tool in found.items() if not _is_of(name, rule)}
        return found

    def check(self, name: str, schema: Mapping[str, Any]) -> Check:
        """What is wrong with the input of a tool; compiled once."""
        if name not in self._checks:
            self._checks[name] = checker(schema)
        return self._checks[name]

    def wants(self, schema: JSON | None) -> None:
        """The answer has to fit this schema from now on."""
        self.schema = schema
        self._checks.pop(STRUCTURED, None)

    # Requests.

    def system(self) -> list[JSON]:
        """The system prompt, as blocks; the last one marks what can be cached."""
        told: Any = self.told.get("systemPrompt")
        parts: list[str] = [told] if isinstance(told, str) else [str(part) for part in items(told)]
        if not parts:
            given = self.launch.system_prompt
            parts = [IDENTITY if given is None else given]
        parts += [self.launch.append_system_prompt or "", self.told.get("appendSystemPrompt") or "", self.memory]
        if not self.launch.bare:
            parts.append(surroundings(self.workplace.cwd, self.workplace.directories, self.model))
        blocks = [{"type": "text", "text": part} for part in parts if part.strip()]
        return self._cached(blocks)

    def request(self, messages: list[JSON] | None = None, *, tools: bool = True) -> JSON:
        """A request of the Messages API: all that is said so far, or other messages."""
        shown = self.history.shown() if messages is None else messages
        body: JSON = {"model": self.model, "max_tokens": self.max_output, "messages": self._marked(shown)}
        system = self.system()
        if system:
            body["system"] = system
        offered = self._offered() if tools else []
        if offered:
            body["tools"] = offered
        thinking = self._thinking()
        if thinking is not None:
            body["thinking"] = thinking
        if self.effort is not None:
            body["output_config"] = {"effort": self.effort}
        return body

    def _offered(self) -> list[JSON]:
        offered: list[ToolLike] = list(self.tools().values())
        found: list[JSON] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.input_schema)}
            for tool in offered
        ]
        if self.schema is not None:
            found.append({"name": STRUCTURED, "description": STRUCTURED_TOOL, "input_schema": self.schema})
        return self._cached(found)

    def _cached(self, blocks: list[JSON]) -> list[JSON]:
        """The same, with the mark on the last one: what stands before it is read from the cache next time."""
        if not blocks or self.env.get("DISABLE_PROMPT_CACHING"):
            return blocks
        return [*blocks[:-1], blocks[-1] | {"cache_control": EPHEMERAL}]

    def _marked(self, messages: list[JSON]) -> list[JSON]:
        if not messages:
            return messages
        last = messages[-1]
        blocks: list[JSON] = last["content"]
        if not blocks or blocks[-1].get("type") in {"thinking", "redacted_thinking"}:
            return messages
        return [*messages[:-1], last | {"content": self._cached(blocks)}]

    def _thinking(self) -> JSON | None:
        kind, tokens = self.launch.thinking, self.thinking_tokens
        if kind == "disabled" or tokens == 0:
            return None
        display = self.launch.thinking_display
        shown = {"display": display} if display in {"summarized", "omitted"} else {}
        if model_of(self.model).adaptive:
            return {"type": "adaptive", **shown}
        if tokens is None and kind is None:
            return None
        budget = min(tokens or THINKING_TOKENS, self.max_output - 1)
        return {"type": "enabled", "budget_tokens": max(budget, LEAST_THINKING), **shown}

    # What hooks are told.

    def about(self, *, mode: bool = True) -> JSON:
        """What every hook is told."""
        about: JSON = {
            "session_id": self.history.session_id,
            "transcript_path": str(self.history.path),
            "cwd": str(self.workplace.cwd),
            "prompt_id": self.history.prompt_id,
        }
        return about | ({"permission_mode": self.mode} if mode else {})

    def begin_anew(self) -> str:
        """Forget the conversation: a new session with the same settings. Gives its id."""
        self.history.renew(str(uuid.uuid4()))
        self.wire.session_id = self.history.session_id
        self.workplace.read.clear()
        return self.history.session_id


def config_dir_of(env: Mapping[str, str]) -> Path:
    """The configuration directory of the CLI in this environment."""
    given = env.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else Path(env.get("HOME") or Path.home()) / ".claude"


def _thinking_tokens(launch: Launch, env: Mapping[str, str]) -> int | None:
    if launch.thinking_tokens is not None:
        return launch.thinking_tokens
    given = env.get("MAX_THINKING_TOKENS")
    return int(given) if given and given.isdigit() else None


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default


def _is_of(name: str, rule: str) -> bool:
    """Whether a rule without a condition names a tool: the tool, or its whole server."""
    return name == rule or name.startswith(f"{rule}__") or (rule.endswith("__*") and name.startswith(rule[:-1]))
