"""The parts of the CLI's messages that come from the Messages API.

Content blocks, token usage, message bodies, and the streaming events of a `stream_event`. Plain data. Fields without a
default are required; a block that lacks one is kept as `UnknownBlock`.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from pilothouse.messages.base import MessagePart, UnknownPart


def _no_input() -> dict[str, Any]:
    """Return a default that is still written out, because the API requires the key."""
    return {}


class Block(MessagePart, frozen=True, gc=False, omit_defaults=True):
    """Base of the known content blocks."""


class UnknownBlock(UnknownPart):
    """A block of an unknown type, or without a field that its type requires; `.data` is the JSON value."""

    __slots__ = ()


class TextBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="text"):
    """Wire type `text`: what the model says."""

    text: str
    citations: list[dict[str, Any]] | None = None
    cache_control: dict[str, Any] | None = None


class ThinkingBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="thinking"):
    """Wire type `thinking`: the model's reasoning, and the signature that proves it."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="redacted_thinking"):
    """Wire type `redacted_thinking`: reasoning that only the API can read."""

    data: str


class ToolUseBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="tool_use"):
    """Wire type `tool_use`: the model calls a tool, of the CLI or of your program."""

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=_no_input)
    caller: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ToolResultBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="tool_result"):
    """Wire type `tool_result`: the result of a tool call."""

    tool_use_id: str
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The content as text: a string as it is, else its text blocks joined."""
        return content_text(self.content)


class ServerToolUseBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="server_tool_use"):
    """Wire type `server_tool_use`: a call that the API runs itself."""

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=_no_input)
    caller: dict[str, Any] | None = None


class ServerToolResultBlock(Block, frozen=True, gc=False, omit_defaults=True):
    """The result of a tool of the API: every wire type `*_tool_result` of the CLI; `.type` names it.

    `content` is an object or a list, as the tool defines it.
    """

    tool_use_id: str
    content: Any = None
    caller: dict[str, Any] | None = None


class WebSearchToolResultBlock(ServerToolResultBlock, frozen=True, gc=False, tag="web_search_tool_result"):
    """Wire type `web_search_tool_result`."""


class WebFetchToolResultBlock(ServerToolResultBlock, frozen=True, gc=False, tag="web_fetch_tool_result"):
    """Wire type `web_fetch_tool_result`."""


class CodeExecutionToolResultBlock(ServerToolResultBlock, frozen=True, gc=False, tag="code_execution_tool_result"):
    """Wire type `code_execution_tool_result`."""


class BashCodeExecutionToolResultBlock(
    ServerToolResultBlock, frozen=True, gc=False, tag="bash_code_execution_tool_result"
):
    """Wire type `bash_code_execution_tool_result`."""


class TextEditorToolResultBlock(
    ServerToolResultBlock, frozen=True, gc=False, tag="text_editor_code_execution_tool_result"
):
    """Wire type `text_editor_code_execution_tool_result`."""


class ToolSearchToolResultBlock(ServerToolResultBlock, frozen=True, gc=False, tag="tool_search_tool_result"):
    """Wire type `tool_search_tool_result`."""


class AdvisorToolResultBlock(ServerToolResultBlock, frozen=True, gc=False, tag="advisor_tool_result"):
    """Wire type `advisor_tool_result`."""


class McpToolUseBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="mcp_tool_use"):
    """Wire type `mcp_tool_use`: a call of an MCP server that the API connects to itself."""

    id: str
    name: str
    server_name: str = ""
    input: dict[str, Any] = field(default_factory=_no_input)


class McpToolResultBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="mcp_tool_result"):
    """Wire type `mcp_tool_result`."""

    tool_use_id: str
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """The content as text: a string as it is, else its text blocks joined."""
        return content_text(self.content)


class ImageBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="image"):
    """Wire type `image`; `source` is a base64, url or file object."""

    source: dict[str, Any]
    cache_control: dict[str, Any] | None = None


class DocumentBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="document"):
    """Wire type `document`: a PDF or text; `source` is a base64, text, content, url or file object."""

    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class SearchResultBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="search_result"):
    """Wire type `search_result`: a passage that can be cited."""

    source: str
    title: str = ""
    content: "list[ContentBlock]" = []
    citations: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ContainerUploadBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="container_upload"):
    """Wire type `container_upload`: a file for the code execution container."""

    file_id: str
    cache_control: dict[str, Any] | None = None


class ToolReferenceBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="tool_reference"):
    """Wire type `tool_reference`: a deferred tool that a search made available."""

    tool_name: str


class CompactionBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="compaction"):
    """Wire type `compaction`: a summary that replaces earlier messages."""

    content: str | None = None
    encrypted_content: str | None = None


KnownBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ServerToolUseBlock
    | WebSearchToolResultBlock
    | WebFetchToolResultBlock
    | CodeExecutionToolResultBlock
    | BashCodeExecutionToolResultBlock
    | TextEditorToolResultBlock
    | ToolSearchToolResultBlock
    | AdvisorToolResultBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ContainerUploadBlock
    | ToolReferenceBlock
    | CompactionBlock
)

# The decoder's union is closed; unknown blocks come only from the lenient path.
if TYPE_CHECKING:
    ContentBlock = KnownBlock | UnknownBlock
else:
    ContentBlock = KnownBlock


def content_text(content: str | list[ContentBlock] | None) -> str:
    """Return the text of message or tool content: a string as it is, else its text blocks joined."""
    if isinstance(content, str):
        return content
    return "".join([block.text for block in content or () if isinstance(block, TextBlock)])


class CacheCreation(Struct, frozen=True, gc=False):
    """Tokens written to the prompt cache, by time to live."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ServerToolUsage(Struct, frozen=True, gc=False):
    """Counts of tool runs on the API's side."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class OutputTokensDetails(Struct, frozen=True, gc=False):
    """Details of the output tokens, such as the thinking part."""

    thinking_tokens: int = 0


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts of one API message or one whole result. Missing and null counts read as 0."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputTokensDetails | None = None
    server_tool_use: ServerToolUsage | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    iterations: list[Any] | None = None
    speed: str | None = None
    fallback_credit: Any = None

    @property
    def total_input_tokens(self) -> int:
        """All input tokens: new, written to the cache and read from it."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def total_tokens(self) -> int:
        """All input and output tokens."""
        return self.total_input_tokens + self.output_tokens


class ModelUsage(Struct, frozen=True, gc=False, rename="camel"):
    """Usage and cost of one model in a result: a value of its `modelUsage`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    web_search_requests: int = 0
    cost_usd: float = field(default=0.0, name="costUSD")
    context_window: int = 0
    max_output_tokens: int = 0
    thinking_tokens: int = 0
    cache_creation_5m_input_tokens: int = field(default=0, name="cacheCreationEphemeral5mInputTokens")
    cache_creation_1h_input_tokens: int = field(default=0, name="cacheCreationEphemeral1hInputTokens")
    canonical_model: str | None = None
    provider: str | None = None
    cost_basis: str | None = None

    @property
    def total_input_tokens(self) -> int:
        """All input tokens: new, read from the cache and written to it."""
        return self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens

    @property
    def cache_hit_rate(self) -> float:
        """The part of the input that was read from the cache, from 0 to 1; 0 without any input."""
        return self.cache_read_input_tokens / (self.total_input_tokens or 1)


class AssistantBody(Struct, frozen=True, gc=False, kw_only=True):
    """An API message. In `assistant` lines of the CLI it holds one block, and `stop_reason` is null."""

    id: str | None = None
    type: Literal["message"] = "message"  # a literal, so that no message creates a new string
    role: Literal["assistant"] = "assistant"
    model: str | None = None
    content: "list[ContentBlock]" = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage | None = None
    stop_details: Any = None
    context_management: Any = None
    diagnostics: Any = None
    container: Any = None


class UserBody(Struct, frozen=True, gc=False, kw_only=True):
    """The message of a user or a tool: a string or a list of blocks."""

    role: Literal["user"] = "user"
    content: str | list[ContentBlock] = []


class WireDelta(MessagePart, frozen=True, gc=False):
    """Base of the known deltas, which a `content_block_delta` adds to its block."""


class UnknownWireDelta(UnknownPart):
    """A delta of an unknown type, or without the field that its type requires."""

    __slots__ = ()


class WireTextDelta(WireDelta, frozen=True, gc=False, tag="text_delta"):
    """Wire type `text_delta`."""

    text: str


class WireThinkingDelta(WireDelta, frozen=True, gc=False, tag="thinking_delta", omit_defaults=True):
    """Wire type `thinking_delta`."""

    thinking: str
    estimated_tokens: int | None = None


class WireInputJsonDelta(WireDelta, frozen=True, gc=False, tag="input_json_delta"):
    """Wire type `input_json_delta`: a piece of the JSON text of a tool call's input."""

    partial_json: str


class WireSignatureDelta(WireDelta, frozen=True, gc=False, tag="signature_delta"):
    """Wire type `signature_delta`: the signature of a thinking block."""

    signature: str


class WireCitationsDelta(WireDelta, frozen=True, gc=False, tag="citations_delta"):
    """Wire type `citations_delta`: one more citation of a text block."""

    citation: dict[str, Any]


class WireCompactionDelta(WireDelta, frozen=True, gc=False, tag="compaction_delta", omit_defaults=True):
    """Wire type `compaction_delta`: the content of a compaction block."""

    content: str | None = None
    encrypted_content: str | None = None


KnownWireDelta = (
    WireTextDelta
    | WireThinkingDelta
    | WireInputJsonDelta
    | WireSignatureDelta
    | WireCitationsDelta
    | WireCompactionDelta
)

# The decoder's unions are closed; unknown deltas and events come only from the lenient path.
if TYPE_CHECKING:
    AnyWireDelta = KnownWireDelta | UnknownWireDelta
else:
    AnyWireDelta = KnownWireDelta


class ApiEvent(MessagePart, frozen=True, gc=False):
    """Base of the known stream events."""


class UnknownApiEvent(UnknownPart):
    """An event of an unknown type, or without a field that its type requires."""

    __slots__ = ()


class MessageStart(ApiEvent, frozen=True, gc=False, tag="message_start"):
    """Wire type `message_start`: an API message begins, its content still empty."""

    message: AssistantBody


class ContentBlockStart(ApiEvent, frozen=True, gc=False, tag="content_block_start"):
    """Wire type `content_block_start`: block number `index` begins, usually empty."""

    content_block: ContentBlock
    index: int = 0


class ContentBlockDelta(ApiEvent, frozen=True, gc=False, tag="content_block_delta"):
    """Wire type `content_block_delta`: the next part of block number `index`."""

    delta: AnyWireDelta
    index: int = 0


class ContentBlockStop(ApiEvent, frozen=True, gc=False, tag="content_block_stop"):
    """Wire type `content_block_stop`: block number `index` is complete."""

    index: int = 0


class MessageDeltaBody(Struct, frozen=True, gc=False):
    """The `delta` of a `message_delta`: why the message stopped."""

    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None


class MessageDelta(ApiEvent, frozen=True, gc=False, tag="message_delta"):
    """Wire type `message_delta`: the stop reason and the final usage."""

    delta: MessageDeltaBody = MessageDeltaBody()
    usage: Usage | None = None
    context_management: Any = None


class MessageStop(ApiEvent, frozen=True, gc=False, tag="message_stop"):
    """Wire type `message_stop`: the API message is complete."""


class ApiPing(ApiEvent, frozen=True, gc=False, tag="ping"):
    """Wire type `ping`: the connection is alive."""


class ApiErrorEvent(ApiEvent, frozen=True, gc=False, tag="error"):
    """Wire type `error`: the API failed in the middle of a stream."""

    error: dict[str, Any] = {}


KnownApiEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | ApiPing
    | ApiErrorEvent
)

if TYPE_CHECKING:
    AnyApiEvent = KnownApiEvent | UnknownApiEvent
else:
    AnyApiEvent = KnownApiEvent
