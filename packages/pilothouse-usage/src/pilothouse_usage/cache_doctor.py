"""The cache doctor: which part of the prompt changed between two requests, so that the cache was lost.

Owns what is kept of a request (names, sizes and keyed hashes, never texts or keys), how requests belong to
conversations, and the diagnosis. Knows nothing of HTTP: `cache_relay` hands over each request while it passes.

The API caches a prompt from its beginning, in the order tools, system prompt, messages, up to a marked block. A request
is therefore a list of parts in this order. The doctor compares it with an earlier request of the same conversation:
everything from the first part that differs had to be processed again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, Self, TypeAlias

import anyio
import msgspec

from pilothouse import Agent, PilothouseError, UsageError
from pilothouse.options import render_child_env
from pilothouse.support import decode_line, encode_json, run_blocking
from pilothouse_usage.breakdown import get_server
from pilothouse_usage.cache_relay import Relay, Report, Usage

CacheLossCause: TypeAlias = Literal[
    "model", "tool_added", "tool_removed", "tool_changed", "tools_reordered", "mcp_server_added", "mcp_server_removed",
    "mcp_server_changed", "system_prompt", "thinking", "effort", "tool_choice", "earlier_message", "compaction",
    "expired", "too_many_blocks", "unknown",
]  # fmt: skip
"""Why the cache was lost; docs/guides/cache-doctor.md has a table of them."""

_TEXTS: Final[Mapping[CacheLossCause, str]] = {
    "model": "The model changed: {}. Each has a cache of its own; give side tasks for another model to a sub-agent.",
    "tool_added": "Tools were added: {}. Offer all tools from the first request on, or let Claude Code defer them.",
    "tool_removed": "Tools were removed: {}. Keep the tools of a conversation, and deny calls with `disallowed_tools`.",
    "tool_changed": "Tool definitions changed: {}. Keep times, counts and the like out of descriptions.",
    "tools_reordered": "The order of the tools changed, from {} on. Sort them.",
    "mcp_server_added": "An MCP server was added: {}. Wait for it before the first prompt, or defer its tools.",
    "mcp_server_removed": "An MCP server is gone: {}. See `session.mcp.status()` for the reason.",
    "mcp_server_changed": "An MCP server changed its list of tools: {}. Let it offer the same tools at all times.",
    "system_prompt": "The system prompt changed: {}. Put what changes, such as the date, into the prompt.",
    "thinking": "The thinking settings changed. Keep them for a whole conversation.",
    "effort": "The effort changed. Keep it for a whole conversation.",
    "tool_choice": "The tool choice changed. Keep it for a whole conversation.",
    "earlier_message": "An earlier message changed or is gone: {}. Do not edit it; clear old results rarely.",
    "compaction": "The conversation was compacted. Nothing to do if it was full; else begin a session for a new task.",
    "expired": "The last request was {} s ago, longer than the cache lives. Ask sooner, or cache for an hour.",
    "too_many_blocks": "{} blocks were added at once, and the API looks back 20. Let fewer tools run in parallel.",
    "unknown": "The prompt only grew, but was not found: it was evicted, or two requests overlapped. Nothing to do.",
}  # fmt: skip

LOOKBACK_BLOCKS: Final = 20
"""How far before a marked block the API looks for a part that is in the cache."""
KEPT_REQUESTS: Final = 8
"""Requests of a conversation that a new one is compared with: it may go back to an earlier message."""
KEPT_CONVERSATIONS: Final = 200
BYTES_PER_TOKEN: Final = 4
_WRITE_PRICES: Final = {300: 1.25, 3600: 2.0}
"""By the lifetime in seconds, as multiples of the price of input that is not cached."""
_READ_PRICE: Final = 0.1
NOISE: Final = 0.05
"""A loss of a smaller share, without a difference in the prompt, is not reported."""
FIRST_PARTY: Final = "https://api.anthropic.com"
CLOUDS: Final = ("BEDROCK", "VERTEX", "FOUNDRY", "MANTLE", "ANTHROPIC_AWS", "ANTHROPIC_GOOGLE_CLOUD")
"""What follows `CLAUDE_CODE_USE_` in the variables that choose a cloud provider."""

_SETTINGS: Final[tuple[CacheLossCause, ...]] = ("thinking", "effort", "tool_choice")
_Section: TypeAlias = Literal["model", "tools", "system", "settings", "messages"]
_ORDER: Final[tuple[_Section, ...]] = ("model", "tools", "system", "settings", "messages")


class CacheLoss(msgspec.Struct, frozen=True):
    """A request that could not read from the cache what an earlier request had left there.

    Args:
        cause: why, as a word for programs.
        part: the part that changed: names of tools, of MCP servers, of models, or the place of a block; "" if none.
        position: where the request differs first, such as `tools[3]` or `messages[2].content[0]`; "" if nowhere.
        tokens_lost: tokens that were processed again.
        is_estimate: whether `tokens_lost` is computed from sizes, as the API gave no figures.
        cost_factor: how many times more these tokens cost now: they were written to the cache, not read from it.
        request: number of the request in this doctor, from 1.
        conversation: the session id of Claude Code, and the id of the sub-agent; "" for what it does not have.
    """

    cause: CacheLossCause
    part: str
    position: str
    tokens_lost: int
    is_estimate: bool
    cost_factor: float
    request: int
    conversation: tuple[str, str]

    @property
    def advice(self) -> str:
        """What happened and what to do about it, in words."""
        return _TEXTS[self.cause].format(self.part)

    def __str__(self) -> str:
        agent = f" (sub-agent {self.conversation[1]})" if self.conversation[1] else ""
        tokens = f"{'about ' if self.is_estimate else ''}{self.tokens_lost:,} tokens"
        return f"request {self.request}{agent}, {tokens} at {self.cost_factor:g} times the price: {self.advice}"


class _Part(msgspec.Struct, frozen=True):
    """A piece of a prompt: what is kept of it."""

    section: _Section
    name: str
    position: str
    digest: bytes
    size: int
    role: str = ""
    """Of a message; "" elsewhere."""
    is_summary: bool = False


class _Request(msgspec.Struct):
    """What is kept of a request: its parts in cache order, and how many of them stand before the end of each mark."""

    conversation: tuple[str, str]
    sent: float
    parts: list[_Part]
    marked: list[int]
    lifetime: int
    number: int = 0
    usage: Usage = Usage()

    def digests(self, section: _Section) -> list[bytes]:
        return [part.digest for part in self.parts if part.section == section]


class CacheDoctor:
    """Tells why the prompt cache was lost. Stands between the children of agents and the API, on 127.0.0.1.

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
        self._relay: Relay | None = None
        self._conversations: dict[tuple[str, str], deque[_Request]] = {}
        self._losses: list[CacheLoss] = []
        self._total: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        with anyio.CancelScope(shield=True):  # else a cancellation would leave its thread behind
            self._relay = await run_blocking(Relay, self._observe)
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
            UsageError: the doctor is not open, `agent` is no agent, or its children would ask a cloud provider, whose
                requests are signed for its own address.
        """
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"CacheDoctor.attach: expected an Agent, got {type(agent).__name__}")
        if self._relay is None:
            raise UsageError("this CacheDoctor is not open; use it with `async with`, and attach agents inside")
        env = render_child_env(agent.options, os.environ)
        for name in (f"CLAUDE_CODE_USE_{cloud}" for cloud in CLOUDS):
            if env.get(name, "") not in ("", "0", "false"):
                raise UsageError(f"a CacheDoctor sees requests to the Anthropic API only, and {name} is set")
        address = env.get("ANTHROPIC_BASE_URL") or FIRST_PARTY
        changes = {"ANTHROPIC_BASE_URL": self._relay.add_target(address)}
        if address.rstrip("/") == FIRST_PARTY:
            # The CLI marks and orders prompts in another way if it believes that it asks somebody else.
            changes["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] = "1"
        for name in ("NO_PROXY", "no_proxy"):
            changes[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
        return agent.with_options(base_url=changes["ANTHROPIC_BASE_URL"], env={**(agent.options.env or {}), **changes})

    @property
    def losses(self) -> tuple[CacheLoss, ...]:
        """The losses so far, in order."""
        return tuple(self._losses)

    def report(self) -> str:
        """Return what the doctor saw: a line for the whole, and one for each loss, with what to do about it."""
        total, losses = Counter(self._total), self.losses
        tokens = total["read"] + total["written"] + total["fresh"]
        share = f"{total['read'] / (tokens or 1):.0%} of {tokens:,} prompt tokens were read from the cache."
        if not total["requests"]:
            return (
                "No request reached the doctor. Attach the agent and query inside `async with`; a settings file with "
                "ANTHROPIC_BASE_URL or a cloud provider also prevents it."
            )
        if not total["read"] + total["written"]:
            share = "The API read and wrote no cache: the prompts are too short, or it has none."
            share += " Losses are estimates." if losses else ""
        lost = f"{len(losses) or 'none'} of them lost the cache" if total["requests"] > 1 else "it lost no cache"
        head = f"{total['requests']} request{'s' if total['requests'] > 1 else ''}; {lost}. {share}"
        return "\n- ".join([head, *map(str, losses)])

    def _observe(self, headers: Mapping[str, str], body: bytes) -> Report | None:
        # The CLI names the session, and the sub-agent that asks.
        conversation = headers.get("x-claude-code-session-id", ""), headers.get("x-claude-code-agent-id", "")
        request = _Request(conversation, self._clock(), [], [], 300)
        try:
            for part, mark in self._list_parts(decode_line(body)):
                request.parts.append(part)
                if mark:
                    request.marked.append(len(request.parts))
                    request.lifetime = 3600 if "1h" in str(mark) else 300
        except (PilothouseError, AttributeError, LookupError, TypeError):
            return None  # the API will refuse it
        return lambda usage: self._add(request, usage)

    def _add(self, request: _Request, usage: Usage) -> None:
        fresh, written = usage.input_tokens or 0, usage.cached - usage.read
        self._total.update(requests=1, read=usage.read, written=written, fresh=fresh)
        request.number, request.usage = self._total["requests"], usage
        earlier = self._conversations.pop(request.conversation, None) or deque(maxlen=KEPT_REQUESTS)
        self._conversations[request.conversation] = earlier  # now the last one
        if len(self._conversations) > KEPT_CONVERSATIONS:
            del self._conversations[next(iter(self._conversations))]
        previous = _find_previous(request, earlier)
        if previous is not None and (loss := _diagnose(previous, request)) is not None:
            self._losses.append(loss)
        earlier.append(request)

    def _list_parts(self, body: Any) -> Iterator[tuple[_Part, Any]]:
        """Yield the parts in the order in which the API caches them, each with its `cache_control`."""
        yield self._make("model", body["model"], "model", body["model"]), None
        for number, tool in enumerate(body.get("tools", ())):
            if not tool.get("defer_loading"):  # else it is no part of the prompt
                name = str(tool.get("name") or tool["type"])
                yield self._make("tools", name, f"tools[{number}]", _strip(tool)), tool.get("cache_control")
        for number, block in enumerate(_get_blocks(body.get("system", ()))):
            # The CLI's first block belongs to the bill, and not to the prompt.
            if not block["text"].startswith("x-anthropic-billing-header"):
                position = f"system[{number}]"
                yield self._make("system", position, position, _strip(block)), block.get("cache_control")
        thinking, output = ((body.get(name) or dict[str, Any]()) for name in ("thinking", "output_config"))
        values = (
            f"{thinking.get('type')} {thinking.get('budget_tokens')}",
            output.get("effort"),
            body.get("tool_choice"),
        )
        for name, value in zip(_SETTINGS, values, strict=True):
            yield self._make("settings", name, name, value), None
        for index, message in enumerate(body["messages"]):
            role, rest = message["role"], {name: message[name] for name in message if name != "content"}
            for number, block in enumerate(_get_blocks(message["content"]) or [dict[str, Any]()]):
                position = f"messages[{index}].content[{number}]"
                name = f"{block.get('type')} of the {role} in {position}"
                # So begins the first message after a compaction.
                is_summary = str(block.get("text")).startswith("This session is being continued from a previous")
                part = self._make("messages", name, position, [rest, _strip(block)], role, is_summary)
                yield part, block.get("cache_control")

    def _make(self, section: _Section, name: str, position: str, value: Any, *more: Any) -> _Part:
        content = encode_json(value)
        digest = hashlib.blake2b(content, key=self._key, digest_size=16).digest()
        return _Part(section, name, position, digest, len(content), *more)


def _get_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _strip(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without its mark. Its own fields may have any order; inside of them, order counts for the API."""
    return {name: block[name] for name in sorted(block) if name != "cache_control"}


def _find_previous(request: _Request, earlier: Sequence[_Request]) -> _Request | None:
    """Return the request that this one continues, or None: side requests, such as those for titles, continue nothing.

    It is the one with the longest beginning of messages in common; of several, the one with the most messages in
    common; of several, one without other messages, so that side questions do not count; else the latest.
    """
    messages, tools, system = map(request.digests, ("messages", "tools", "system"))

    def compare(other: _Request) -> tuple[int, int, bool, int]:
        theirs = other.digests("messages")
        common = (Counter(messages) & Counter(theirs)).total()
        beginning = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(messages, theirs, strict=False)))
        return beginning, common, common == len(theirs), other.number

    if (best := max(earlier, key=compare, default=None)) is None:
        return None
    is_same_use = bool(tools) == bool(best.digests("tools")) and compare(best)[1] > 0
    return best if is_same_use or system == best.digests("system") or tools == best.digests("tools") != [] else None


def _diagnose(old: _Request, new: _Request) -> CacheLoss | None:
    limit = old.marked[-1] if old.marked else 0
    lost, is_known = old.usage.cached - new.usage.read, old.usage.cached > 0
    if not limit or (is_known and lost <= 0):
        return None  # there was nothing to lose, or the API found all of it
    first = next((n for n in range(limit) if n >= len(new.parts) or new.parts[n].digest != old.parts[n].digest), None)
    if first is not None:
        if all(part.role and part.role != "assistant" and not part.is_summary for part in new.parts[first:]):
            return None  # the conversation went back to an earlier message: what follows is but a new prompt
        cause, part, position = _compare(old.parts, new.parts, first)
    elif new.sent - old.sent > old.lifetime:
        cause, part, position = "expired", f"{new.sent - old.sent:.0f}", ""
    elif lost > old.usage.cached * NOISE:
        added = next(mark for mark in (*new.marked, len(new.parts)) if mark >= limit) - limit
        cause, part, position = ("too_many_blocks", str(added), "") if added >= LOOKBACK_BLOCKS else ("unknown", "", "")
    else:
        return None
    tokens = lost if is_known else sum(part.size for part in old.parts[first or 0 : limit]) // BYTES_PER_TOKEN
    factor = _WRITE_PRICES[old.lifetime] / _READ_PRICE
    return CacheLoss(cause, part, position, tokens, not is_known, factor, new.number, new.conversation)


def _compare(old: Sequence[_Part], new: Sequence[_Part], first: int) -> tuple[CacheLossCause, str, str]:
    """Return the cause, the name of the part and its position, for prompts that differ from the index `first` on."""
    # A part that is gone or new moves all others: what the API caches first is what has changed.
    part = min(old[first], *new[first : first + 1], key=lambda part: _ORDER.index(part.section))
    match part.section:
        case "model":
            return "model", f"{part.name} → {new[first].name}", part.position
        case "tools":
            return *_compare_tools(_get_tools(old), _get_tools(new), part.name), part.position
        case "system":
            return "system_prompt", part.name, part.position
        case "settings":
            return _SETTINGS[_SETTINGS.index(part.name)], part.name, part.position
        case _:
            is_compact = any(part.is_summary for part in new[first:])
            return "compaction" if is_compact else "earlier_message", part.name, part.position


def _get_tools(parts: Sequence[_Part]) -> dict[str, bytes]:
    return {part.name: part.digest for part in parts if part.section == "tools"}


def _compare_tools(old: Mapping[str, bytes], new: Mapping[str, bytes], first: str) -> tuple[CacheLossCause, str]:
    removed, added = old.keys() - new.keys(), new.keys() - old.keys()
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    # The CLI's own tools for resources come and go with the servers that have some.
    servers = {get_server(name) for name in removed | added if "McpResource" not in name}
    if servers and "" not in servers:
        is_new, is_gone = (servers.isdisjoint(map(get_server, tools)) for tools in (old, new))
        cause = "mcp_server_added" if is_new else "mcp_server_removed" if is_gone else "mcp_server_changed"
    else:
        cause = (
            "tool_removed" if removed else "tool_added" if added else "tool_changed" if changed else "tools_reordered"
        )
        servers = removed or added or changed or {first}
    return cause, ", ".join(sorted(servers))
