"""How a failure of the API is told, as CLI 2.1.330 tells it: a result of subtype "success" with `is_error`. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pilothouse.native.api import ApiError


class Told(NamedTuple):
    """One failure, in the words of the wire.

    Attributes:
        text: what stands in the message and in the result.
        error: the class of it, on the message.
        terminal: why the turn ended.
        fields: `api_error_status`, `api_error_type`, `api_error`; on the message and on the result.
    """

    text: str
    error: str
    terminal: str
    fields: dict[str, Any]


_SERVER_SIDE: Final = (
    "API Error: {status} {message}. The server failed, which usually passes: try again in a moment, and look at the "
    "endpoint if it does not."
)
_TEXTS: Final[dict[int, str]] = {
    401: "Failed to authenticate. API Error: {status} {message}",
    403: "Failed to authenticate. API Error: {status} {message}",
    413: "Request too large: {message} Remove images or compact the conversation.",
    429: "API Error: Request rejected (429) · {message}",
}
_CLASSES: Final[dict[int | None, str]] = {
    None: "server_error",
    401: "authentication_failed",
    402: "billing_error",
    403: "authentication_failed",
    404: "model_not_found",
    413: "invalid_request",
    429: "rate_limit",
}
_RETRIED_AS: Final[dict[int | None, str]] = {None: "unknown", 529: "overloaded"}
_TOO_LONG: Final = ("prompt is too long", "exceed context limit", "context window")


def is_too_long(error: ApiError) -> bool:
    """Whether the conversation does not fit into the window of the model."""
    return error.status == 400 and any(words in error.message.lower() for words in _TOO_LONG)


def retried_as(error: ApiError) -> str:
    """What `api_retry` calls it."""
    return _RETRIED_AS.get(error.status) or _class_of(error)


def _class_of(error: ApiError) -> str:
    if error.status is not None and error.status >= 500:
        return "server_error"
    return _CLASSES.get(error.status, "unknown")


def told(error: ApiError) -> Told:
    """The failure in the words of the wire."""
    if error.status is None:
        text = f"API Error: the API could not be reached or broke off: {error.message}"
        return Told(text, "server_error", "api_error", {"api_error_status": None, "api_error": "connection_failed"})
    template = _TEXTS.get(error.status, _SERVER_SIDE if error.status >= 500 else "API Error: {status} {message}")
    terminal = "prompt_too_long" if is_too_long(error) else "image_error" if error.status == 413 else "api_error"
    if terminal == "prompt_too_long":
        template = "Prompt is too long · {message}"
    fields: dict[str, Any] = {"api_error_status": error.status}
    if error.kind:
        fields["api_error_type"] = error.kind
    return Told(template.format(status=error.status, message=error.message), _class_of(error), terminal, fields)
