"""The errors of `claude_agent_sdk`, and how errors of pilothouse become them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pilothouse import errors

_REFUSED: Final = "the CLI refused the control request {!r}: "
"""Stands before what the CLI has said."""


class ClaudeSDKError(Exception):
    """Base of all errors here."""


class CLIConnectionError(ClaudeSDKError):
    """There is no connection to the CLI."""


class CLINotFoundError(CLIConnectionError):
    """There is no CLI."""

    def __init__(self, message: str = "Claude Code not found", cli_path: str | None = None) -> None:
        super().__init__(f"{message}: {cli_path}" if cli_path else message)


class ProcessError(ClaudeSDKError):
    """The CLI has failed."""

    def __init__(self, message: str, exit_code: int | None = None, stderr: str | None = None) -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        code = "" if exit_code is None else f" (exit code: {exit_code})"
        super().__init__(f"{message}{code}" + (f"\nError output: {stderr}" if stderr else ""))


class ResultError(ProcessError):
    """The run has ended with an error result, whose fields are attributes here; `data` is all of it."""

    def __init__(self, message: str, data: dict[str, Any] | None = None, exit_code: int | None = None) -> None:
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.subtype: str | None = _pick(self.data, "subtype", str)
        self.errors: list[str] = list_errors(self.data)
        self.result: str | None = _pick(self.data, "result", str)
        self.api_error_status: int | None = _pick(self.data, "api_error_status", int)
        self.terminal_reason: str | None = _pick(self.data, "terminal_reason", str)
        self.session_id: str | None = _pick(self.data, "session_id", str)
        super().__init__(message, exit_code=exit_code)


class CLIJSONDecodeError(ClaudeSDKError):
    """A line of the CLI is not JSON."""

    def __init__(self, line: str, original_error: Exception) -> None:
        self.line = line
        self.original_error = original_error
        super().__init__(f"Failed to decode JSON: {line[:100]}...")


class MessageParseError(ClaudeSDKError):
    """A message lacks what it needs."""

    def __init__(self, message: str, data: dict[str, Any] | None = None) -> None:
        self.data = data
        super().__init__(message)


class RefusedOptionError(CLIConnectionError, ValueError):
    """An option cannot work. The CLI is not started for it, so this is a ValueError too."""


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _pick(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    return value if isinstance(value, kind) else None


def list_errors(data: Mapping[str, Any]) -> list[str]:
    """Return the errors of a result: its texts that are not blank, without space around them."""
    given: Any = data.get("errors")
    items = [given] if isinstance(given, str) else cast("list[Any]", given) if isinstance(given, list) else []
    return [item.strip() for item in items if isinstance(item, str) and item.strip()]


def make_result_error(data: dict[str, Any], exit_code: int | None = 1) -> ResultError:
    """Make the error for a result that reports one."""
    subtype, status = data.get("subtype"), data.get("api_error_status")
    known = subtype if subtype not in (None, "success") else None
    texts = "; ".join(list_errors(data)) or data.get("result") or known
    text = texts or (f"API error (HTTP {status})" if status else "unknown error")
    return ResultError(f"Claude Code returned an error result: {text}", data, exit_code)


def convert_error(error: Exception) -> Exception:
    """Return the error of this package that stands for one of pilothouse; others are returned as they are."""
    if isinstance(error, errors.CLINotFoundError):
        text = str(error)
        return CLINotFoundError(text.replace("Claude Code was not found", "Claude Code not found", 1))
    if isinstance(error, errors.ResultError):
        return ResultError(str(error), dict(as_mapping(getattr(error.result, "raw", None))), 1)
    if isinstance(error, errors.CLIExitedError):
        return ProcessError(str(error), error.exit_code, error.stderr or None)
    if isinstance(error, errors.ControlTimeout):
        return ClaudeSDKError(f"Control request timeout: {error.subtype}")
    if isinstance(error, errors.ControlError):
        return ClaudeSDKError(str(error).removeprefix(_REFUSED.format(error.subtype)))
    if isinstance(error, errors.UsageError):
        return RefusedOptionError(str(error))
    if not isinstance(error, errors.PilothouseError):
        return error
    return CLIConnectionError(str(error)) if isinstance(error, errors.ProcessError) else ClaudeSDKError(str(error))
