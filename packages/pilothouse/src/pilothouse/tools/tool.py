"""`@tool`: turns a Python function into a tool that the model may call.

Owns the definition of a tool, its names and hints, and how one call runs: input check, limits of time and size, error
texts for the model. Knows no server and no wire format, so every bridge runs tools the same way.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

import anyio
import msgspec
from anyio.lowlevel import RunVar

from pilothouse.callbacks import call_function, is_async, is_failure, is_stray_cancellation
from pilothouse.errors import ToolDefinitionError
from pilothouse.tools.calls import ToolContext, ToolError, ToolExecutionError, ToolResultError, ToolTimeout
from pilothouse.tools.content import make_error_result, result_size, to_json_value, to_result
from pilothouse.tools.input_schema import (
    REQUIRED,
    ParametersInput,
    Signature,
    ToolInput,
    TypeInput,
    caller_locals,
    make_input,
    read_signature,
)

P = ParamSpec("P")
R = TypeVar("R")

ErrorText: TypeAlias = str | Callable[[BaseException], str]

DEFAULT_MAX_RESULT_BYTES: Final = 10 * 1024 * 1024  # more than a model reads, less than the API refuses
STRIPS_DOCSTRINGS: Final = 2
"""The level of optimisation, `sys.flags.optimize`, at which Python removes docstrings."""
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
_MAX_RESULT_CHARS: Final = "anthropic/maxResultSizeChars"

_logger = logging.getLogger("pilothouse.tools")


class Tool(Generic[P, R]):
    """A function that the model may call; made by `@tool`. Called from Python, it is still that function.

    Attributes:
        name: the name that the model uses, without the name of its server.
        description: what it does, for the model.
        input_schema: JSON Schema of its input.
        annotations: hints, in the format of MCP.
        timeout: time limit of one call, in seconds; None for no limit.
        max_concurrency: how many calls run at once in one event loop; None for any number. Further calls wait.
        max_result_bytes: size limit of a result, in bytes.
        max_result_chars: how long a result may be to reach the model whole, in characters; None for the CLI's limit.
        always_load: whether the prompt always holds its schema; if not, the model has to search for it first.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Any = None,
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
        max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES,
        max_result_chars: int | None = None,
        always_load: bool = True,
        error_text: ErrorText | None = None,
        meta: Mapping[str, Any] | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(cast("Any", function), Tool):
            function = cast("Callable[P, R]", inspect.unwrap(function))
        signature = read_signature(function, namespace)
        self.name = check_tool_name(signature.name if name is None else name)
        self.description = signature.description if description is None else description
        if not self.description:
            _warn_undescribed(self.name)
        _check_type(self.name, "description", description, str)
        _check_type(self.name, "meta", meta, Mapping)
        _check_type(self.name, "always_load", always_load, bool)
        if error_text is not None and not isinstance(error_text, str) and not callable(error_text):
            raise ToolDefinitionError(f"{self.name}: error_text must be text or a function; got {error_text!r}")
        self._signature = signature
        self._input, self._takes_whole_input = _make_tool_input(self.name, signature, schema)
        self.input_schema = self._input.schema
        if schema is None:
            _warn_untyped(self.name, signature)
        self.annotations = read_annotations(self.name, annotations)
        self.timeout = _check_positive(self.name, "timeout", timeout, (int, float))
        self.max_concurrency = _check_positive(self.name, "max_concurrency", max_concurrency, int)
        self.max_result_bytes: int = _check_positive(self.name, "max_result_bytes", max_result_bytes, int)
        self.max_result_chars: int | None = _check_positive(self.name, "max_result_chars", max_result_chars, int)
        self.always_load = always_load
        own = {_ALWAYS_LOAD: always_load or None, _MAX_RESULT_CHARS: max_result_chars}
        self._meta = {name: value for name, value in own.items() if value is not None} | to_json_value(meta or {})
        self._error_text = error_text
        self._function: Any = function
        self._is_async = is_async(function)
        self._semaphores: RunVar[anyio.Semaphore] | None = None if max_concurrency is None else RunVar(self.name)
        # Names and docstring only: attributes of the function would hide those of the tool.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as it is: no checks, no limits, no thread."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Tool[..., R]:
        """Bind the tool to an object, so that it calls the object's method."""
        if instance is None or not self._signature.is_method:
            return self
        bound: Any = copy.copy(self)
        bound.__dict__["_function"] = self._function.__get__(instance, owner)
        bound.__dict__["_signature"] = replace(self._signature, is_method=False)
        return bound

    @property
    def is_bound(self) -> bool:
        """Whether the tool can be called; a method taken from its class still lacks its object."""
        return not self._signature.is_method

    def definition(self) -> dict[str, Any]:
        """Make the entry for MCP's `tools/list`."""
        made: dict[str, Any] = {"name": self.name}
        if self.description:
            made["description"] = self.description
        made["inputSchema"] = self.input_schema
        if self.annotations:
            made["annotations"] = self.annotations
        return made | ({"_meta": self._meta} if self._meta else {})

    async def invoke(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> dict[str, Any]:
        """Run one call.

        Args:
            arguments: the input from the model.
            context: the context for the function, if it has a parameter for one.

        Returns:
            The result in the format of MCP: `content`, and optionally `structuredContent` and `isError`.

        Raises:
            ToolError: the call failed; the class says how, and the text is for the model.
        """
        given = self._input.parse(arguments)
        args, named = ((given,), {}) if self._takes_whole_input else ((), cast("dict[str, Any]", given))
        if context is None:
            context = ToolContext(tool_name=self.name)
        if self._signature.context_parameter is not None:
            named = {**named, self._signature.context_parameter: context}
        if self._semaphores is None:
            value = await self._call_with_timeout(args, named, context)
        else:
            async with self._get_semaphore(self._semaphores):
                value = await self._call_with_timeout(args, named, context)
        return self._check_result(value)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> dict[str, Any]:
        """Run one call like `invoke`, but return a failure as a result with `isError`."""
        try:
            return await self.invoke(arguments, context)
        except ToolError as error:
            return make_error_result(str(error))

    def _get_semaphore(self, slots: RunVar[anyio.Semaphore]) -> anyio.Semaphore:
        # One semaphore for each event loop: a tool may be used in several loops, a semaphore may not.
        slot = slots.get(None)
        if slot is None:
            slot = anyio.Semaphore(self.max_concurrency or 1)
            slots.set(slot)
        return slot

    async def _call_with_timeout(self, args: tuple[Any, ...], named: dict[str, Any], context: ToolContext) -> Any:
        if self.timeout is None:
            return await self._call(args, named, context)
        with anyio.move_on_after(self.timeout):
            return await self._call(args, named, context)
        raise ToolTimeout(f"{self.name} did not answer within {self.timeout:g} s", seconds=self.timeout)

    async def _call(self, args: tuple[Any, ...], named: dict[str, Any], context: ToolContext) -> Any:
        try:
            return await call_function(self._function, args, named, "tool", self.name, inline=self._is_async)
        except ToolError:
            raise
        except BaseException as error:
            if is_stray_cancellation(error):
                raise ToolExecutionError(f"{self.name} was cancelled from inside") from error
            if is_failure(error):
                raise ToolExecutionError(self._error_message(error)) from error
            context.mark_cancelled()
            raise

    def _error_message(self, error: BaseException) -> str:
        if isinstance(self._error_text, str):
            return self._error_text
        try:
            return str(self._error_text(error)) if self._error_text is not None else default_error_text(error)
        except Exception:  # noqa: BLE001 - user code; the model still needs an error text
            return f"{self.name} failed: {type(error).__name__}"

    def _check_result(self, value: Any) -> dict[str, Any]:
        try:
            result = to_result(value)
        except ToolError:
            raise
        except Exception as error:
            raise ToolResultError(f"the result of {self.name} cannot be sent: {self._error_message(error)}") from error
        size = result_size(result)
        if size > self.max_result_bytes:
            raise ToolResultError(
                f"the result of {self.name} has {size:,} bytes, and {self.max_result_bytes:,} are allowed; ask for less"
            )
        return result


def default_error_text(error: BaseException) -> str:
    """The text for the model about an exception: its class and its text, no traceback."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Any = None,
    annotations: ToolAnnotations | Mapping[str, Any] | None = None,
    timeout: float | None = None,
    max_concurrency: int | None = None,
    max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES,
    max_result_chars: int | None = None,
    always_load: bool = True,
    error_text: ErrorText | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, *_other: Any, **settings: Any) -> Any:
    """Make a function a tool.

    The function supplies the name, the description and the input schema: types from the annotations, their meaning
    from the docstring, from `Annotated[int, "how many"]` or from the fields of the types. A parameter annotated with
    `ToolContext` gets the context of the call. An async function runs on the event loop, any other in a worker
    thread.

    Args:
        function: the function to call.
        **settings: see below.

    Settings:
        name: the name that the model uses; by default the name of the function.
        description: by default from the docstring.
        schema: replaces the annotations: a JSON Schema (a function with one parameter, which is not one of its
            properties, gets the whole input, any other its properties by name), names with their types, or a type,
            whose value the function gets.
        annotations: hints for permission rules and people.
        timeout: time limit of one call, in seconds; no limit by default.
        max_concurrency: how many calls run at once in one event loop; any number by default.
        max_result_bytes: size limit of a result, in bytes; 10 MiB by default. A larger one is an error for the model.
        max_result_chars: how long a result may be to reach the model whole, in characters. Of a longer one the CLI
            gives the model the first 2 kB and the path of a file, and a warning is logged. By default
            50,000, at most 500,000.
        always_load: whether the prompt always holds its schema; True by default.
        error_text: the text for the model when the function raises: a text, or a function of the exception. By
            default the class and the text of the exception. A `ToolError` always keeps its own text.
        meta: more `_meta` of the tool.

    Raises:
        ToolDefinitionError: the function, a name or a setting cannot be used.
    """
    names = caller_locals()
    if _other or isinstance(cast("Any", function), str):  # @tool("name", "description", {…}), as in claude_agent_sdk
        raise ToolDefinitionError(
            "@tool takes keywords: write @tool, or @tool(name=…), above a function whose parameters have types, such "
            "as def add(a: float, b: float); or use create_tool(name, description, schema, function)"
        )
    if function is not None:
        return Tool(function, namespace=names, **settings)
    return functools.partial(Tool[..., Any], namespace=names, **settings)


def create_tool(name: str, description: str, schema: Any, handler: Callable[P, R], **settings: Any) -> Tool[P, R]:
    """Make a tool from its parts.

    Args:
        name: the name that the model uses.
        description: what it does, for the model.
        schema: its input, as with `tool(schema=…)`; None to read the signature of `handler`.
        handler: the function to call, sync or async.
        **settings: as with `tool`.

    Raises:
        ToolDefinitionError: a part cannot be used.
    """
    return Tool(handler, name=name, description=description, schema=schema, namespace=caller_locals(), **settings)


def as_tool(value: Any) -> Tool[..., Any]:
    """Return `value` if it is a tool, else make one of it. Raises ToolDefinitionError."""
    made = cast("Tool[..., Any]", value) if isinstance(value, Tool) else Tool[..., Any](value)
    if not made.is_bound:
        raise ToolDefinitionError(f"{made.name} is a method without its object; take it from an object of its class")
    return made


@functools.cache
def warn_stripped_docstrings() -> None:
    """Warn, once, that functions have no docstrings under `python -OO`."""
    if sys.flags.optimize >= STRIPS_DOCSTRINGS:
        _logger.warning(
            "python -OO (PYTHONOPTIMIZE=2) removes docstrings, so tools have no descriptions from them: run python -O, "
            "or pass @tool(description=…), and Annotated[str, '…'] for the parameters"
        )


def _warn_undescribed(name: str) -> None:
    warn_stripped_docstrings()
    if sys.flags.optimize < STRIPS_DOCSTRINGS:
        _logger.warning(
            "the tool %s has no description, so the model has to guess what it does: give the function a docstring, or "
            "pass @tool(description=…)",
            name,
        )


def _warn_untyped(name: str, signature: Signature) -> None:
    untyped = [each.name for each in signature.parameters if each.annotation is Any]
    if untyped and len(untyped) == len(signature.parameters):
        _logger.warning(
            "the tool %s has no types for %s, so the model has to guess them: write def %s(%s: str, …)",
            name,
            ", ".join(untyped),
            name,
            untyped[0],
        )


def _make_tool_input(name: str, signature: Signature, schema: Any) -> tuple[ToolInput, bool]:
    """Return the input of the tool, and whether the function gets it as one value."""
    try:
        if schema is None:
            return ParametersInput(signature.parameters, accepts_extra=signature.accepts_extra), False
        takes = make_input(schema)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{name}: {error}") from error
    properties: Mapping[str, Any] = takes.schema.get("properties", {})
    needed = [each.name for each in signature.parameters if each.default is REQUIRED]
    one = len(signature.parameters) == 1 and not signature.accepts_extra
    if isinstance(takes, TypeInput) or (one and not signature.names & properties.keys()):
        if len(needed) > 1 or not signature.parameters:
            raise ToolDefinitionError(f"{name}: it gets its input as one value, so it must take exactly one parameter")
        return takes, True
    if missing := [each for each in needed if each not in properties]:
        raise ToolDefinitionError(f"{name}: its parameter {missing[0]!r} is not in the schema")
    if not signature.accepts_extra and (left := [each for each in properties if each not in signature.names]):
        raise ToolDefinitionError(f"{name}: its schema has {left[0]!r}, which the function does not take")
    return takes, False


def _check_positive(name: str, setting: str, value: Any, kind: Any) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not value > 0):
        raise ToolDefinitionError(f"{name}: {setting} must be a number above 0, or None; got {value!r}")
    return value


def _check_type(name: str, setting: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise ToolDefinitionError(f"{name}: {setting} must be of type {kind.__name__}; got {value!r}")


_NAME = re.compile(r"[A-Za-z0-9_-]+")
MAX_FULL_NAME: Final = 128  # characters of `mcp__server__tool`, by the API
# The CLI keeps servers in plain JavaScript objects, and refuses the names of their built-in properties.
_RESERVED_SERVER_NAMES: Final = frozenset(
    {
        "constructor", "prototype", "__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__",
        "__lookupSetter__", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString",
        "valueOf",
    }
)  # fmt: skip


class ToolAnnotations(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hints about a tool. They are not enforced; permission rules and people read them.

    Attributes:
        title: a name for people.
        read_only_hint: the tool changes nothing. The CLI runs such tools concurrently with others.
        destructive_hint: the tool may delete or overwrite.
        idempotent_hint: calling the tool twice has the same effect as calling it once.
        open_world_hint: the tool talks to systems outside, such as the web.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


_HINT_FIELDS = {
    spelling: field.name
    for field in msgspec.structs.fields(ToolAnnotations)
    for spelling in (field.name, field.encode_name, field.name.removesuffix("_hint"))
}


def read_annotations(tool: str, annotations: Any) -> dict[str, Any]:
    """Convert hints to their wire format; raises ToolDefinitionError, which names the tool.

    They are a `ToolAnnotations`, such an object of the `mcp` package, or a mapping with the names of MCP or of Python
    (`read_only`, `read_only_hint`, `readOnlyHint`).
    """
    if annotations is None:
        return {}
    if hasattr(annotations, "model_dump"):
        annotations = annotations.model_dump(by_alias=True, exclude_none=True)
    if isinstance(annotations, Mapping):
        hints = cast("Mapping[str, Any]", annotations)
        unknown = [name for name in hints if name not in _HINT_FIELDS]
        if unknown:
            known = ", ".join(field.name for field in msgspec.structs.fields(ToolAnnotations))
            raise ToolDefinitionError(f"{tool}: unknown annotation {unknown[0]!r}; known are: {known}")
        annotations = ToolAnnotations(**{_HINT_FIELDS[name]: value for name, value in hints.items()})
    if not isinstance(annotations, ToolAnnotations):
        raise ToolDefinitionError(f"{tool}: annotations must be ToolAnnotations, got {type(annotations).__name__}")
    try:
        return msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(annotations), ToolAnnotations))
    except msgspec.ValidationError as error:
        raise ToolDefinitionError(f"{tool}: annotations: {error}") from error


def check_tool_name(name: Any) -> str:
    """Return `name` if a tool may have it. Raises ToolDefinitionError if not."""
    return _check_name("tool", name)


def check_server_name(name: Any) -> str:
    """Return `name` if a server may have it. Raises ToolDefinitionError if not."""
    checked = _check_name("server", name)
    if checked in _RESERVED_SERVER_NAMES:
        raise ToolDefinitionError(f"{name!r} cannot be the name of a server: the CLI refuses it")
    if "__" in checked or checked.endswith("_"):
        raise ToolDefinitionError(f"{name!r} cannot be the name of a server: mcp__server__tool would be ambiguous")
    return checked


def check_full_name(server: str, tool: str) -> str:
    """Return `mcp__server__tool`, the name that the model sees. Raises ToolDefinitionError if it is too long."""
    full = f"mcp__{server}__{tool}"
    if len(full) > MAX_FULL_NAME:
        raise ToolDefinitionError(f"{full} has {len(full)} characters; the API takes {MAX_FULL_NAME}")
    return full


def _check_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{name!r} cannot be the name of a {what}: only letters, digits, hyphens and underscores are taken"
            + ("; name a lambda with ph.tool(name=…)" if name == "<lambda>" else "")
        )
    if len(name) > MAX_FULL_NAME:
        raise ToolDefinitionError(f"the name of a {what} has at most {MAX_FULL_NAME} characters: {name[:40]}…")
    return name
