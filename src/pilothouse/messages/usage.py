"""Token counts and costs as the API and the CLI report them (CLI 2.1.330). Plain numbers; knows no messages."""

from typing import Any

from msgspec import Struct, field


class CacheCreation(Struct, frozen=True, gc=False):
    """Tokens written to the prompt cache, by time to live."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ServerToolUsage(Struct, frozen=True, gc=False):
    """How often tools ran on the API's side."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class OutputTokensDetails(Struct, frozen=True, gc=False):
    """What part of the output was thinking."""

    thinking_tokens: int = 0


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts of one API message or one whole result. Missing and null counts read as 0. (S42)"""

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
        """All input: fresh, written to the cache and read from it."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def total_tokens(self) -> int:
        """All input and all output."""
        return self.total_input_tokens + self.output_tokens


class ModelUsage(Struct, frozen=True, gc=False, rename="camel"):
    """What one model used in a result: the values of its `modelUsage`. (L51-L53)"""

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
