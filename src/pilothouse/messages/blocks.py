"""Content blocks: the `content` of assistant and user messages (Messages API, CLI 2.1.330).

Owns the block classes and their closed union. Must not know messages or decoding. Fields without a default are
required; a block that lacks one is kept as `UnknownBlock`.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import TYPE_CHECKING, Any

from msgspec import field

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
    """Wire type `text`."""

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
    """Wire type `tool_use`: a call of a tool that the CLI or the host runs."""

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=_no_input)
    caller: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ToolResultBlock(Block, frozen=True, gc=False, omit_defaults=True, tag="tool_result"):
    """Wire type `tool_result`: what a tool gave back."""

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
    """What a tool of the API gave back: every wire type `*_tool_result` of 2.1.330; `.type` says which.

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
    """Wire type `compaction`: a summary that stands for earlier messages."""

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


def content_text(content: "str | list[ContentBlock] | None") -> str:
    """Return the text of message or tool content: a string as it is, else its text blocks joined."""
    if isinstance(content, str):
        return content
    return "".join([block.text for block in content or () if isinstance(block, TextBlock)])
