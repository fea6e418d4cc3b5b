"""The cache doctor: which part of the prompt changed between two requests, so that the cache was lost.

Owns what is kept of a request (names, sizes and keyed hashes, never texts or keys), how requests belong to
conversations, and the diagnosis. Knows nothing of HTTP: `cache_relay` hands over each request while it passes.

The API caches a prompt from its beginning, in the order tools, system prompt, messages, up to a marked block. A request
is therefore a list of parts in this order. The doctor compares it with an earlier request of the same conversation:
everything behind the first part that differs had to be processed again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeAlias

import anyio
import msgspec
from msgspec import Struct

from pilothouse import Agent, UsageError
from pilothouse.options import render_child_env
from pilothouse.support import run_blocking
from pilothouse_usage.cache_relay import Relay, Usage

CacheLossCause: TypeAlias = Literal[
    "model", "tool_added", "tool_removed", "tool_changed", "tools_reordered", "mcp_server_added", "mcp_server_removed",
    "mcp_server_changed", "system_prompt", "thinking", "effort", "tool_choice", "earlier_message", "compaction",
    "expired", "too_many_blocks", "unknown",
]  # fmt: skip
"""Why the cache was lost; docs/guides/cache-doctor.md has a table of them."""

_EXPLANATIONS: Final[Mapping[CacheLossCause, tuple[str, str]]] = {
    "model": (
        "the model changed: {part}",
        "each model has a cache of its own; give side tasks for another model to a sub-agent",
    ),
    "tool_added": (
        "tools came: {part}",
        "offer all tools from the first request on, or let Claude Code defer them (ENABLE_TOOL_SEARCH)",
    ),
    "tool_removed": ("tools went: {part}", "keep the tools of a conversation, and deny calls with `disallowed_tools`"),
    "tool_changed": (
        "the description or schema of tools changed: {part}",
        "keep times, counts and other changing values out of descriptions",
    ),
    "tools_reordered": ("tools have another order, from {part} on", "sort the list of tools"),
    "mcp_server_added": (
        "the MCP server {part} came",
        "connect it before the first request (`wait_for_mcp`), or let Claude Code defer its tools (ENABLE_TOOL_SEARCH)",
    ),
    "mcp_server_removed": ("the MCP server {part} went", "look why it ended: `session.mcp.status()`"),
    "mcp_server_changed": (
        "the MCP server {part} changed its list of tools",
        "let it offer the same list at all times",
    ),
    "system_prompt": (
        "the system prompt changed ({part})",
        "keep it the same for a whole conversation; put what changes, such as the date, into the prompt",
    ),
    "thinking": ("the thinking settings changed", "keep them for a whole conversation"),
    "effort": ("the effort changed", "keep it for a whole conversation; some models lose their cache by it"),
    "tool_choice": ("the tool choice changed", "keep it for a whole conversation"),
    "earlier_message": (
        "{part} changed, or is gone",
        "do not edit what was sent; transcripts, hooks and the clearing of old tool results do",
    ),
    "compaction": (
        "the conversation was compacted",
        "nothing, if it was full; else compact less often, or begin a new session for a new task",
    ),
    "expired": (
        "{seconds:.0f} s passed since the last request, and the cache lives {lifetime} s",
        "ask in time, or use the cache of one hour",
    ),
    "too_many_blocks": (
        "{part} blocks came at once, and the API looks back 20",
        "let fewer tools run in parallel",
    ),
    "unknown": (
        "the prompt only grew, but the API did not find it in the cache",
        "nothing: it was evicted, or the request was sent before the last answer had begun",
    ),
}

LIFETIME_SECONDS: Final = 300
LONG_LIFETIME_SECONDS: Final = 3600
LOOKBACK_BLOCKS: Final = 20
"""How far before a marked block the API looks for a part that is in the cache."""
KEPT_REQUESTS: Final = 8
"""Requests of a conversation that a new one is compared with: it may go back to an earlier message."""
KEPT_CONVERSATIONS: Final = 200
BYTES_PER_TOKEN: Final = 4
NOISE: Final = 0.05
"""A loss of a smaller share, without a difference in the prompt, is not reported."""
FIRST_PARTY_HOST: Final = "api.anthropic.com"
CLOUDS: Final = ("BEDROCK", "VERTEX", "FOUNDRY", "MANTLE", "ANTHROPIC_AWS", "ANTHROPIC_GOOGLE_CLOUD")
"""What follows `CLAUDE_CODE_USE_` in the variables that choose a cloud provider."""
# The API takes this block off before it caches the prompt.
_BILLING: Final = "x-anthropic-billing-header"
# So begins the first message after a compaction.
_SUMMARY: Final = "This session is being continued from a previous conversation"

_SETTINGS: Final[Mapping[str, CacheLossCause]] = {name: name for name in ("thinking", "effort", "tool_choice")}
_Section: TypeAlias = Literal["model", "tools", "system", "settings", "messages"]
_ORDER: Final[tuple[_Section, ...]] = ("model", "tools", "system", "settings", "messages")
_Fields: TypeAlias = dict[str, Any]


class CacheLoss(Struct, frozen=True, kw_only=True):
    """A request that could not read from the cache what the request before it had left there.

    Args:
        cause: why, as a word for programs.
        part: the part that changed: names of tools, of an MCP server, of models, or the place of a block.
        position: where the request differs first, such as `tools[3]` or `messages[2].content[0]`; "" if nowhere.
        tokens_lost: tokens that were processed again.
        is_estimate: whether `tokens_lost` is computed from sizes, as the API gave no figures.
        seconds: since the request before it.
        lifetime: seconds for which the lost part was cached.
        request: number of the request in this doctor, from 1.
        session_id: of Claude Code; "" if the client sent none.
        agent_id: of the sub-agent; "" for the main conversation.
    """

    cause: CacheLossCause
    part: str
    position: str
    tokens_lost: int
    is_estimate: bool
    seconds: float
    lifetime: int
    request: int
    session_id: str
    agent_id: str

    @property
    def cost_factor(self) -> float:
        """How many times more the lost tokens cost now: they were written to the cache, not read from it."""
        return (2.0 if self.lifetime == LONG_LIFETIME_SECONDS else 1.25) / 0.1

    @property
    def explanation(self) -> str:
        """What happened, in words."""
        return _EXPLANATIONS[self.cause][0].format(part=self.part, seconds=self.seconds, lifetime=self.lifetime)

    @property
    def advice(self) -> str:
        """What to do about it, in words."""
        return _EXPLANATIONS[self.cause][1]

    def __str__(self) -> str:
        about = "about " if self.is_estimate else ""
        where = f"request {self.request}" + (f" of sub-agent {self.agent_id}" if self.agent_id else "")
        return (
            f"{where}: {self.explanation}. {about}{self.tokens_lost:,} tokens were processed again, at "
            f"{self.cost_factor:g} times the price. To do: {self.advice}."
        )


class _Part(Struct, frozen=True):
    """A piece of a prompt: what is kept of it."""

    section: _Section
    name: str
    position: str
    digest: bytes
    size: int
    role: str = ""
    is_summary: bool = False


class _Message(Struct):
    role: str
    content: str | list[_Fields]
    output_config: Any = None


class _Body(Struct):
    """A request to the Messages endpoint, as far as it is read."""

    model: str
    messages: list[_Message]
    system: str | list[_Fields] = ""
    tools: list[_Fields] = []
    thinking: _Fields = {}
    output_config: _Fields = {}
    tool_choice: _Fields = {}
    cache_control: Any = None


class _Request(Struct):
    """What is kept of a request: its parts in cache order, and how many of them are cached."""

    number: int
    session_id: str
    agent_id: str
    seconds: float
    parts: list[_Part]
    marked: list[int]
    """How many parts stand before the end of each marked block."""
    lifetime: int
    usage: Usage = Usage()

    def digests(self, section: str) -> list[bytes]:
        return [part.digest for part in self.parts if part.section == section]

    @property
    def cached(self) -> int:
        return self.marked[-1] if self.marked else 0


class CacheDoctor:
    """Tells why the prompt cache was lost. Stands between children of agents and the API, on 127.0.0.1.

    The children of an attached agent send their requests to the doctor, which passes them on to where they would have
    gone, and the answers back, unchanged and at once. It keeps names, sizes and keyed hashes, no text and no key; the
    key of the hashes is random and never leaves the doctor. Works on asyncio and trio.

    Args:
        clock: the time in seconds, for tests. Default: `time.monotonic`.

    Example:
        ```python
        async with CacheDoctor() as doctor:
            agent = doctor.attach(ph.Agent(model="opus"))
            async with agent.session() as session:
                await session.query("Read README.md")
                await session.query("And now?", append_system_prompt="Be brief.")
        print(doctor.report())
        ```
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        self._conversations: dict[tuple[str, str], deque[_Request]] = {}
        self._losses: list[CacheLoss] = []
        self._count = 0
        self._total: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._relay = Relay(self._observe)
        return self

    async def __aexit__(self, *_: object) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            with anyio.CancelScope(shield=True):
                await run_blocking(relay.stop)

    def attach(self, agent: Agent) -> Agent:
        """Return an agent like this one whose children send their requests through the doctor.

        Args:
            agent: an agent whose children run on this machine.

        Raises:
            UsageError: the doctor is not open, or the children would ask a cloud provider, whose requests are signed
                for its own address.
        """
        if self._relay is None:
            raise UsageError("this CacheDoctor is not open; use it with `async with`, and attach agents inside")
        env = render_child_env(agent.options, os.environ)
        for name in (f"CLAUDE_CODE_USE_{cloud}" for cloud in CLOUDS):
            if env.get(name, "") not in ("", "0", "false"):
                raise UsageError(f"a CacheDoctor sees requests to the Anthropic API only, and {name} is set")
        address = env.get("ANTHROPIC_BASE_URL") or f"https://{FIRST_PARTY_HOST}"
        url = self._relay.add_target(address, env)
        changes = {"ANTHROPIC_BASE_URL": url}
        if address.startswith(f"https://{FIRST_PARTY_HOST}"):
            # The CLI marks and orders prompts in another way if it believes that it asks somebody else.
            changes["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] = "1"
        for name in ("NO_PROXY", "no_proxy"):
            changes[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
        return agent.with_options(base_url=url, env={**(agent.options.env or {}), **changes})

    @property
    def losses(self) -> tuple[CacheLoss, ...]:
        """The losses so far, in order."""
        with self._lock:
            return tuple(self._losses)

    def report(self) -> str:
        """Return what the doctor saw, a line a loss, with what to do about it."""
        with self._lock:
            losses, count, total = list(self._losses), self._count, Counter(self._total)
        if not count:
            return (
                "No answered request came through the doctor. Is the agent attached, and does no settings file set "
                "ANTHROPIC_BASE_URL or a cloud provider?"
            )
        tokens = sum(total.values())
        share = f"{total['read'] / tokens:.0%} of {tokens:,} prompt tokens were read from the cache."
        if not total["read"] + total["written"]:
            share = "The API read and wrote no cache: the prompts are too short, or it has none. Losses are estimates."
        head = f"{count} requests, {len(losses)} with a lost cache. {share}"
        return "\n".join([head, *(f"- {loss}" for loss in losses)])

    def _observe(self, headers: Mapping[str, str], body: bytes) -> Callable[[Usage], None] | None:
        sent = self._clock()
        try:
            request = self._read(headers, msgspec.json.decode(body, type=_Body), sent)
        except (msgspec.MsgspecError, UnicodeError):
            return None

        def report(usage: Usage) -> None:
            with self._lock:
                self._add(request, usage)

        return report

    def _add(self, request: _Request, usage: Usage) -> None:
        self._count += 1
        request.number, request.usage = self._count, usage
        fresh = usage.input_tokens or 0
        self._total.update(read=usage.read, written=usage.cached - usage.read, fresh=fresh)
        key = request.session_id, request.agent_id
        earlier = self._conversations.pop(key, None) or deque(maxlen=KEPT_REQUESTS)
        self._conversations[key] = earlier  # the last one is the one used last
        if len(self._conversations) > KEPT_CONVERSATIONS:
            del self._conversations[next(iter(self._conversations))]
        previous = _find_previous(request, earlier)
        if previous is not None and (loss := _diagnose(previous, request)) is not None:
            self._losses.append(loss)
        earlier.append(request)

    # what is kept of a request

    def _read(self, headers: Mapping[str, str], body: _Body, sent: float) -> _Request:
        parts, marked, lifetime = list[_Part](), list[int](), LIFETIME_SECONDS
        for part, mark in self._list_parts(body):
            parts.append(part)
            if mark is not None:
                marked.append(len(parts))
                lifetime = LONG_LIFETIME_SECONDS if "1h" in str(mark) else LIFETIME_SECONDS
        session_id = headers.get("x-claude-code-session-id", "")
        return _Request(0, session_id, headers.get("x-claude-code-agent-id", ""), sent, parts, marked, lifetime)

    def _list_parts(self, body: _Body) -> Iterator[tuple[_Part, Any]]:
        """Yield the parts in the order in which the API caches them, each with its `cache_control`."""
        yield self._make("model", body.model, "model", body.model), None
        for number, tool in enumerate(body.tools):
            if not tool.get("defer_loading"):  # else it is no part of the prompt
                part = self._make("tools", str(tool.get("name")), f"tools[{number}]", _plain(tool))
                yield part, tool.get("cache_control")
        for number, block in enumerate(_blocks(body.system)):
            if not str(block.get("text")).startswith(_BILLING):
                position = f"system[{number}]"
                yield self._make("system", f"block {number + 1}", position, _plain(block)), block.get("cache_control")
        thinking = {name: body.thinking.get(name) for name in ("type", "budget_tokens")}
        values = (thinking, body.output_config.get("effort"), body.tool_choice)
        for name, value in zip(_SETTINGS, values, strict=True):
            yield self._make("settings", name, name, value), None
        for at, message in enumerate(body.messages):
            blocks = _blocks(message.content) or [{}]
            for number, block in enumerate(blocks):
                name = f"block {number + 1} ({block.get('type')}) of message {at + 1} ({message.role})"
                position = f"messages[{at}].content[{number}]"
                value = [message.role, message.output_config, _plain(block)]
                is_last = at == len(body.messages) - 1 and number == len(blocks) - 1
                mark = block.get("cache_control") or (body.cache_control if is_last else None)
                is_summary = str(block.get("text")).startswith(_SUMMARY)
                yield self._make("messages", name, position, value, message.role, is_summary), mark

    def _make(
        self, section: _Section, name: str, position: str, value: Any, role: str = "", is_summary: bool = False
    ) -> _Part:
        content = msgspec.json.encode(value)
        digest = hashlib.blake2b(content, key=self._key, digest_size=16).digest()
        return _Part(section, name, position, digest, len(content), role, is_summary)


def _blocks(content: str | list[_Fields]) -> list[_Fields]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _plain(block: _Fields) -> _Fields:
    """Return a block without its mark. Its own fields may have any order; inside of them, order counts for the API."""
    return {name: block[name] for name in sorted(block) if name != "cache_control"}


# diagnosis


def _find_previous(request: _Request, earlier: Sequence[_Request]) -> _Request | None:
    """Return the request that this one continues, or None: side requests, such as those for titles, continue nothing.

    It is the one with the most messages in common; of several, one that has no other messages, so that a conversation
    may go back to an earlier message, and side questions do not count; else the latest.
    """
    messages = Counter(request.digests("messages"))

    def compare(other: _Request) -> tuple[int, bool, int]:
        theirs = Counter(other.digests("messages"))
        return (messages & theirs).total(), theirs <= messages, other.number

    best = max(earlier, key=compare, default=None)
    if best is None:
        return None
    tools, system = request.digests("tools"), request.digests("system")
    is_same_use = bool(tools) == bool(best.digests("tools")) and compare(best)[0] > 0
    return best if is_same_use or system == best.digests("system") or tools == best.digests("tools") != [] else None


def _diagnose(old: _Request, new: _Request) -> CacheLoss | None:
    limit = old.cached
    lost, is_known = old.usage.cached - new.usage.read, old.usage.cached > 0
    if not limit or (is_known and lost <= 0):
        return None  # there was nothing to lose, or the API found all of it
    seconds = new.seconds - old.seconds
    first = next((n for n in range(limit) if n >= len(new.parts) or new.parts[n].digest != old.parts[n].digest), None)
    part, position = "", ""
    if first is not None:
        if _goes_back(new.parts[first:]):
            return None
        cause, part, position = _compare(old.parts, new.parts, first)
    elif seconds > old.lifetime:
        cause = "expired"
    elif lost > old.usage.cached * NOISE:
        added = next(mark for mark in (*new.marked, len(new.parts)) if mark >= limit) - limit
        cause, part = ("too_many_blocks", str(added)) if added > LOOKBACK_BLOCKS else ("unknown", "")
    else:
        return None
    return CacheLoss(
        cause=cause,
        part=part,
        position=position,
        tokens_lost=lost if is_known else sum(part.size for part in old.parts[first or 0 : limit]) // BYTES_PER_TOKEN,
        is_estimate=not is_known,
        seconds=seconds,
        lifetime=old.lifetime,
        request=new.number,
        session_id=new.session_id,
        agent_id=new.agent_id,
    )


def _goes_back(rest: Sequence[_Part]) -> bool:
    """Whether these parts are but a new prompt: the conversation went back to an earlier message and goes on there."""
    return all(part.section == "messages" and part.role != "assistant" and not part.is_summary for part in rest)


def _compare(old: Sequence[_Part], new: Sequence[_Part], first: int) -> tuple[CacheLossCause, str, str]:
    """Return the cause, the name of the part and its position, for prompts that differ from the index `first` on."""
    # A part that is gone or new moves all others: what the API caches first is what has changed.
    part = min(old[first], *new[first : first + 1], key=lambda part: _ORDER.index(part.section))
    if part.section == "model":
        return "model", f"{part.name} → {new[first].name}", part.position
    if part.section == "tools":
        return *_compare_tools(_get_tools(old), _get_tools(new), part.name), part.position
    if part.section == "system":
        return "system_prompt", part.name, part.position
    if part.section == "settings":
        return _SETTINGS[part.name], part.name, part.position
    if any(part.is_summary for part in new[first:]):
        return "compaction", "", part.position
    return "earlier_message", part.name, part.position


def _get_tools(parts: Sequence[_Part]) -> dict[str, bytes]:
    return {part.name: part.digest for part in parts if part.section == "tools"}


def _compare_tools(old: Mapping[str, bytes], new: Mapping[str, bytes], first: str) -> tuple[CacheLossCause, str]:
    removed, added = old.keys() - new.keys(), new.keys() - old.keys()
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    servers = {_get_server(name) for name in removed | added}
    if servers and "" not in servers:
        part = ", ".join(sorted(servers))
        if servers.isdisjoint(map(_get_server, old)):
            return "mcp_server_added", part
        if servers.isdisjoint(map(_get_server, new)):
            return "mcp_server_removed", part
        return "mcp_server_changed", part
    kinds: tuple[tuple[CacheLossCause, set[str]], ...] = (
        ("tool_removed", removed), ("tool_added", added), ("tool_changed", changed), ("tools_reordered", {first}),
    )  # fmt: skip
    return next((cause, ", ".join(sorted(names))) for cause, names in kinds if names)


def _get_server(tool: str) -> str:
    """Return the name of the MCP server of a tool; "" for other tools."""
    return tool.split("__")[1] if tool.startswith("mcp__") else ""
