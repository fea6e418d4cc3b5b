"""`@tool`: a Python function that the model may call.

Owns what a tool is, how it is made of a function, and how one call of it is run: checked, bounded, and told in words
that the model can use. Knows no server and no wire, so that every bridge runs tools the same way.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

import anyio
from anyio.lowlevel import RunVar

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools.annotations import ToolAnnotations, check_tool_name, read_annotations
from pilothouse.tools.calling import call, is_async, is_stray_cancellation
from pilothouse.tools.content import error_result, plain, result_size, to_result
from pilothouse.tools.context import ToolContext
from pilothouse.tools.failures import ToolError, ToolExecutionError, ToolResultError, ToolTimeout
from pilothouse.tools.schemas import FieldsInput, Input, TypeInput, input_of
from pilothouse.tools.signatures import REQUIRED, Signature, caller_names, read_signature
from pilothouse.tracebacks import user_function

P = ParamSpec("P")
R = TypeVar("R")

ErrorText: TypeAlias = str | Callable[[BaseException], str]

DEFAULT_MAX_RESULT_BYTES: Final = 10 * 1024 * 1024  # more than a model reads, less than the API refuses
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"

log = logging.getLogger("pilothouse.tools")


class Tool(Generic[P, R]):
    """A function that the model may call; made by `@tool`. Called from Python, it is still that function.

    Attributes:
        name: how the model calls it, without the name of its server.
        description: what it does, for the model.
        input_schema: JSON Schema of what it takes.
        annotations: hints, in the words of MCP.
        timeout: how long one call may take, in seconds; None for as long as it wants.
        max_concurrency: how many calls run at once in one event loop; None for any number. Others wait for their turn.
        max_result_bytes: how large a result may be.
        always_load: whether its schema always stands in the prompt; if not, the model has to search for it first.
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
        always_load: bool = True,
        error_text: ErrorText | None = None,
        meta: Mapping[str, Any] | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        function = cast("Callable[P, R]", inspect.unwrap(function)) if _is_tool(function) else function
        signature = read_signature(function, namespace)
        self.name = check_tool_name(signature.name if name is None else name)
        self.description = signature.description if description is None else description
        self._signature = signature
        self._takes, self._whole = _input(self.name, signature, schema)
        self.input_schema = self._takes.schema
        if schema is None:
            _warn_of_untyped(self.name, signature)
        self.annotations = read_annotations(self.name, annotations)
        self.timeout = _positive(self.name, "timeout", timeout, (int, float))
        self.max_concurrency = _positive(self.name, "max_concurrency", max_concurrency, int)
        self.max_result_bytes = max_result_bytes
        self.always_load = always_load
        self._meta = {**({_ALWAYS_LOAD: True} if always_load else {}), **plain(meta or {})}
        self._error_text = error_text
        self._function: Any = function
        self._is_async = is_async(function)
        self._slots: RunVar[anyio.Semaphore] | None = None if max_concurrency is None else RunVar(self.name)
        # Names and docstring only: attributes of the function would hide those of the tool.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as it is: no checks, no limits, no thread."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Tool[..., R]:
        """As an attribute of an object, the tool that calls its method."""
        if instance is None or not self._signature.is_method:
            return self
        bound: Any = copy.copy(self)
        bound.__dict__["_function"] = self._function.__get__(instance, owner)
        bound.__dict__["_signature"] = replace(self._signature, is_method=False)
        return bound

    @property
    def is_bound(self) -> bool:
        """Whether it can be called: a method that was taken from its class still lacks its object."""
        return not self._signature.is_method

    @property
    def wants_context(self) -> bool:
        """Whether the function has a parameter for the `ToolContext`."""
        return self._signature.context is not None

    def definition(self) -> dict[str, Any]:
        """The tool as an entry of MCP's `tools/list`."""
        made: dict[str, Any] = {"name": self.name}
        if self.description:
            made["description"] = self.description
        made["inputSchema"] = self.input_schema
        if self.annotations:
            made["annotations"] = self.annotations
        return made | ({"_meta": self._meta} if self._meta else {})

    async def invoke(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> dict[str, Any]:
        """Run one call. (S20, S26, S38)

        Args:
            arguments: what the model gave.
            context: what the function is told of the call, if it asks.

        Returns:
            The result in the words of MCP: `content`, and perhaps `structuredContent` and `isError`.

        Raises:
            ToolError: the call failed; the class says how, and the text is for the model.
        """
        given = self._takes.read(arguments)
        args, named = ((given,), {}) if self._whole else ((), cast("dict[str, Any]", given))
        if context is None:
            context = ToolContext(tool_name=self.name)
        if self._signature.context is not None:
            named = {**named, self._signature.context: context}
        if self._slots is None:
            value = await self._limited(args, named, context)
        else:
            async with self._slot(self._slots):
                value = await self._limited(args, named, context)
        return self._checked(value)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> dict[str, Any]:
        """The same, but a failure is a result, too, with `isError`. (S39)"""
        try:
            return await self.invoke(arguments, context)
        except ToolError as error:
            return error_result(str(error))

    def _slot(self, slots: RunVar[anyio.Semaphore]) -> anyio.Semaphore:
        # One for each event loop: a tool outlives them, and a semaphore does not.
        slot = slots.get(None)
        if slot is None:
            slot = anyio.Semaphore(self.max_concurrency or 1)
            slots.set(slot)
        return slot

    async def _limited(self, args: tuple[Any, ...], named: dict[str, Any], context: ToolContext) -> Any:
        if self.timeout is None:
            return await self._called(args, named, context)
        with anyio.move_on_after(self.timeout):
            return await self._called(args, named, context)
        raise ToolTimeout(f"{self.name} did not answer within {self.timeout:g} s", seconds=self.timeout)

    async def _called(self, args: tuple[Any, ...], named: dict[str, Any], context: ToolContext) -> Any:
        try:
            return await call(self._function, args, named, inline=self._is_async)
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            raise ToolExecutionError(self._told(error)) from error
        except BaseException as error:
            if is_stray_cancellation(error):
                raise ToolExecutionError(f"{self.name} was cancelled from inside") from error
            context.mark_cancelled()
            raise

    def _told(self, error: BaseException) -> str:
        if isinstance(self._error_text, str):
            return self._error_text
        try:
            return str(self._error_text(error)) if self._error_text is not None else default_error_text(error)
        except Exception:  # noqa: BLE001 - whatever it is, the model still needs an answer
            return f"{self.name} failed: {type(error).__name__}"

    def _checked(self, value: Any) -> dict[str, Any]:
        try:
            result = to_result(value)
        except ToolError:
            raise
        except Exception as error:
            raise ToolResultError(f"the result of {self.name} cannot be sent: {self._told(error)}") from error
        size = result_size(result)
        if size > self.max_result_bytes:
            raise ToolResultError(
                f"the result of {self.name} has {size:,} bytes, and {self.max_result_bytes:,} are allowed; ask for less"
            )
        return result


def default_error_text(error: BaseException) -> str:
    """What the model is told of an exception: its class and its text, no traceback."""
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
    always_load: bool = True,
    error_text: ErrorText | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


@user_function
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function a tool. (R20, R22)

    Its name, its description and the schema of its input come from the function: types from the annotations, what
    they mean from the docstring, from `Annotated[int, "how many"]` or from the fields of its types. A parameter
    annotated with `ToolContext` gets the context of the call. An async function runs on the event loop, any other in
    a worker thread.

    Args:
        function: what to call.
        **settings: see below.

    Settings:
        name: how the model calls it; by default the name of the function.
        description: by default from the docstring.
        schema: what it takes, in place of the annotations: a JSON Schema (a function with one parameter, which is no
            property of it, gets the whole input, any other its properties by name), names with their types, or a
            type, whose value the function gets.
        annotations: hints for permission rules and people.
        timeout: how long one call may take, in seconds; by default as long as it wants.
        max_concurrency: how many calls run at once in one event loop; by default any number.
        max_result_bytes: how large a result may be; 10 MiB by default.
        always_load: whether its schema always stands in the prompt; True by default.
        error_text: what the model is told when the function raises: a text, or a function of the exception. By
            default its class and its text. A `ToolError` always speaks for itself.
        meta: more `_meta` of the tool.

    Raises:
        ToolDefinitionError: the function, a name or a setting cannot be used.
    """
    names = caller_names()
    if function is not None:
        return Tool(function, namespace=names, **settings)
    return functools.partial(Tool[..., Any], namespace=names, **settings)


@user_function
def create_tool(name: str, description: str, schema: Any, handler: Callable[P, R], **settings: Any) -> Tool[P, R]:
    """Make a tool from its parts. (R20)

    Args:
        name: how the model calls it.
        description: what it does, for the model.
        schema: what it takes, as with `tool(schema=…)`; None to read the signature of `handler`.
        handler: what to call, sync or async.
        **settings: as with `tool`.

    Raises:
        ToolDefinitionError: a part cannot be used.
    """
    return Tool(handler, name=name, description=description, schema=schema, namespace=caller_names(), **settings)


def as_tool(value: Any) -> Tool[..., Any]:
    """`value`, or the tool made of it. Raises ToolDefinitionError."""
    made = cast("Tool[..., Any]", value) if isinstance(value, Tool) else Tool[..., Any](value)
    if not made.is_bound:
        raise ToolDefinitionError(f"{made.name} is a method without its object; take it from an object of its class")
    return made


def _is_tool(value: object) -> bool:
    return isinstance(value, Tool)


def _warn_of_untyped(name: str, signature: Signature) -> None:
    untyped = [each.name for each in signature.parameters if each.annotation is Any]
    if untyped and len(untyped) == len(signature.parameters):
        log.warning(
            "the tool %s says nothing of the types of %s, so the model has to guess them: write def %s(%s: str, …)",
            name,
            ", ".join(untyped),
            name,
            untyped[0],
        )


def _input(name: str, signature: Signature, schema: Any) -> tuple[Input, bool]:
    """What the tool takes, and whether the function gets it as one value."""
    try:
        if schema is None:
            return FieldsInput(signature.parameters, takes_more=signature.takes_more), False
        takes = input_of(schema)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{name}: {error}") from error
    properties: Mapping[str, Any] = takes.schema.get("properties", {})
    needed = [each.name for each in signature.parameters if each.default is REQUIRED]
    one = len(signature.parameters) == 1 and not signature.takes_more
    if isinstance(takes, TypeInput) or (one and not signature.names & properties.keys()):
        if len(needed) > 1 or not signature.parameters:
            raise ToolDefinitionError(f"{name}: it gets its input as one value, so it must take exactly one parameter")
        return takes, True
    if missing := [each for each in needed if each not in properties]:
        raise ToolDefinitionError(f"{name}: its parameter {missing[0]!r} is not in the schema")
    if not signature.takes_more and (left := [each for each in properties if each not in signature.names]):
        raise ToolDefinitionError(f"{name}: its schema has {left[0]!r}, which the function does not take")
    return takes, False


def _positive(name: str, setting: str, value: Any, kind: Any) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or value <= 0):
        raise ToolDefinitionError(f"{name}: {setting} must be a number above 0, or None; got {value!r}")
    return value
