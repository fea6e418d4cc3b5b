"""Typed output: what the answer must be, whether it is that, and what to say to the model when it is not. Pure.

Knows msgspec's types (structs, dataclasses, TypedDicts, NamedTuples, attrs classes, builtins and unions of them) and,
by their methods, pydantic's. Imports pydantic only when a type needs it. Loaded only by queries that ask for output.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from pilothouse.client.events import AnswerEvent, OutputRejected
from pilothouse.client.outcome import result_error
from pilothouse.client.result import closing_message
from pilothouse.client.schemas import VALUE_KEY, Schema, portable, with_object_root
from pilothouse.errors import OptionsError, PilothouseError, StructuredOutputError
from pilothouse.messages import AssistantMessage, Message, ResultMessage

if TYPE_CHECKING:
    from pilothouse.client.result import QueryResult

Read: TypeAlias = Callable[[Message], Iterator[AnswerEvent]]

OUTPUT_TOOL = "StructuredOutput"  # how the CLI (2.1.330) calls the tool that takes the output

# Keys under which models like to put the whole value although nobody asked for it.
WRAPPERS = frozenset({"output", "result", "input", "parameters", "value", "data"})
UNWRAP_DEPTH = 3

RAW_CHARS = 4000  # of what the model gave, kept on the error
SHOWN_CHARS = 1500  # of it, and of the problem, in the prompt that asks again
SHOWN_PROBLEMS = 8

# Turns that ended otherwise were stopped on purpose (a hook, a limit, a tool left to the host): nobody asks again.
_ENDED_BY_ITSELF = (None, "completed")
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)
_NOTHING: Any = object()


# What the answer must be.


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What the answer must be.

    Attributes:
        name: of the type, for messages.
        schema: what the CLI is given; an object at the root.
        wrapped: whether the value stands under one key of that object.
        convert: makes the value of the type; raises any exception when it does not fit.
    """

    name: str
    schema: Schema
    wrapped: bool
    convert: Callable[[Any], Any]

    @classmethod
    def of_type(cls, output_type: Any) -> ExpectedOutput:
        """From a type, or from a JSON Schema as a mapping. (L14)

        Raises:
            OptionsError: no schema can be made of it.
        """
        try:
            if isinstance(output_type, Mapping):
                _check_schema(cast("Mapping[str, Any]", output_type), "output_type")
            source, convert = _schema_and_converter(output_type)
            schema, wrapped = with_object_root(portable(source))
            msgspec.json.encode(schema)
        except OptionsError:
            raise
        except Exception as error:
            raise OptionsError(f"output_type: {_why_not(output_type, error)}", option="output_type") from error
        return cls(_name_of(output_type), schema, wrapped, convert)

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> ExpectedOutput:
        """From the option `json_schema`, which is sent as it is.

        Raises:
            OptionsError: it is no valid schema.
        """
        _check_schema(schema, "json_schema")
        return cls("the JSON Schema", dict(schema), False, _checker(schema))

    def read(self, result: ResultMessage | None) -> tuple[Any, Any]:
        """The output and its plain form.

        Raises:
            StructuredOutputError: there is none, or it does not fit.
        """
        given = _NOTHING
        if result is not None:
            given = _json_in(result.result or "") if result.structured_output is None else result.structured_output
        if given is not _NOTHING:
            return self.fit(given)
        raise StructuredOutputError(
            "the model gave no structured output; ask for it in the prompt, or simplify the schema",
            result=result,
            raw=_cut((result.result or "") if result is not None else "", RAW_CHARS),
        )

    def fit(self, given: Any) -> tuple[Any, Any]:
        """What `given` is, as it stands or out of a known wrapper, and its plain form. (L42)

        Raises:
            StructuredOutputError: neither fits; it tells why `given` as it stands does not.
        """
        first: Exception | None = None
        for plain in self._forms(given):
            try:
                return self.convert(plain), plain
            except Exception as error:  # noqa: BLE001 - a validator of the caller may raise anything
                first = first or error
        assert first is not None
        raise StructuredOutputError(
            f"the structured output does not fit {self.name}: {_problem(first, self.wrapped)}",
            value=given,
            raw=_cut(_json(given), RAW_CHARS),
        ) from first

    def _forms(self, given: Any) -> Iterator[Any]:
        if self.wrapped and isinstance(given, dict) and given.keys() == {VALUE_KEY}:
            yield from _unwrapped(given[VALUE_KEY], UNWRAP_DEPTH)
        yield from _unwrapped(given, UNWRAP_DEPTH)


def _check_schema(schema: Mapping[str, Any], option: str) -> None:
    from pilothouse.json_schema import schema_problem  # types make valid ones

    if (problem := schema_problem(schema)) is not None:
        raise OptionsError(f"{option}: this is no valid JSON Schema: {problem[0]} - at `{problem[1]}`", option=option)


def _why_not(output_type: Any, error: Exception) -> str:
    if isinstance(output_type, str):
        return f"expected a type or a JSON Schema, got text; pass the type itself, not its name {output_type!r:.80}"
    if plain := re.search(r"type <class '(?:.*\.)?(\w+)'> is not supported", str(error)):
        return (
            f"{plain[1]} is a plain class, which does not say what its fields are; make it a dataclass, a TypedDict, a "
            "msgspec struct or a pydantic model"
        )
    return f"no JSON Schema for {output_type!r}: {error}"


def _schema_and_converter(output_type: Any) -> tuple[Any, Callable[[Any], Any]]:
    if isinstance(output_type, Mapping):
        schema = cast("Mapping[str, Any]", output_type)
        return schema, _checker(schema)
    if hasattr(output_type, "model_json_schema"):
        return output_type.model_json_schema(), _validator(output_type, "model_validate")
    if hasattr(output_type, "json_schema") and hasattr(output_type, "validate_python"):
        return output_type.json_schema(), _validator(output_type, "validate")
    if _mentions_pydantic(output_type):
        return _schema_and_converter(import_module("pydantic").TypeAdapter(output_type))
    return msgspec.json.schema(output_type), lambda value: msgspec.convert(value, output_type, str_keys=True)


def _validator(owner: Any, name: str) -> Callable[[Any], Any]:
    # From JSON: a strict model takes a date, a tuple or a set only from there.
    from_json = getattr(owner, f"{name}_json", None)
    if from_json is not None:
        return lambda value: from_json(msgspec.json.encode(value))
    return getattr(owner, name, None) or owner.validate_python


def _mentions_pydantic(part: Any, seen: set[int] | None = None) -> bool:
    """Whether anything of pydantic stands in a type: msgspec would take its dataclasses, without their checks."""
    seen = set() if seen is None else seen
    if "pydantic" not in sys.modules or id(part) in seen:
        return False
    seen.add(id(part))
    owner = cast("type[Any]", part if isinstance(part, type) else type(part))
    if hasattr(owner, "__pydantic_core_schema__") or hasattr(owner, "__get_pydantic_core_schema__"):
        return True
    if owner.__module__.partition(".")[0] == "pydantic":
        return True
    inside = typing.get_args(part) or _fields(typing.get_origin(part) or part)
    return any(_mentions_pydantic(each, seen) for each in inside)


def _fields(part: Any) -> tuple[Any, ...]:
    try:
        return tuple(typing.get_type_hints(part, include_extras=True).values()) if isinstance(part, type) else ()
    except Exception:  # noqa: BLE001 - a name that cannot be resolved; whoever makes the schema says so
        return ()


def _checker(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    from pilothouse.json_schema import checker  # types check for themselves

    problems_with = checker(schema)

    def check(value: Any) -> Any:
        if problems := problems_with(value):
            raise ValueError("; ".join(f"{text} - at `{path}`" for path, text in problems[:SHOWN_PROBLEMS]))
        return value

    return check


def _name_of(output_type: Any) -> str:
    if isinstance(output_type, Mapping):
        return str(cast("Mapping[str, Any]", output_type).get("title") or "the JSON Schema")
    if isinstance(output_type, type) and not typing.get_args(output_type):
        return output_type.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(output_type))


# What the model gave.


def _unwrapped(given: Any, depth: int) -> Iterator[Any]:
    yield given
    inner = _inside(given)
    if depth and inner is not _NOTHING:
        yield from _unwrapped(inner, depth - 1)


def _inside(given: Any) -> Any:
    if isinstance(given, str):
        return _decoded(given)
    if isinstance(given, dict) and len(cast("dict[str, Any]", given)) == 1:
        [(key, inner)] = cast("dict[str, Any]", given).items()
        return inner if key in WRAPPERS else _NOTHING
    return _NOTHING


def _json_in(text: str) -> Any:
    """The object or list that a text is, or that its only fenced block is."""
    whole = _decoded(text)
    if whole is not _NOTHING:
        return whole
    fenced = _FENCED.findall(text)
    return _decoded(fenced[0]) if len(fenced) == 1 else _NOTHING


def _decoded(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        return _NOTHING
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _last_call(messages: Sequence[Message]) -> Any:
    """What the last call of the output tool held."""
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
            for call in reversed(message.tool_uses):
                if call.name == OUTPUT_TOOL:
                    return call.input
    return _NOTHING


def _problem(error: Exception, wrapped: bool) -> str:
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic: its text has a line for each, and addresses of pages
        found = cast("list[Mapping[str, Any]]", details())
        lines = [f"{each['msg']}, got {_cut(_json(each['input']), 80)} - at `{_path(each)}`" for each in found]
        text = "; ".join(lines[:SHOWN_PROBLEMS])
    elif isinstance(error, ValueError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return text.replace("`$", f"`$.{VALUE_KEY}") if wrapped else text


def _path(detail: Mapping[str, Any]) -> str:
    steps = cast("tuple[str | int, ...]", detail["loc"])
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


# What is said to the model.


def repair_prompt(expected: ExpectedOutput, error: StructuredOutputError) -> str:
    """The user message that asks for the output again: what was wrong, what was given, what to do."""
    missing = error.__cause__ is None
    problem = f"the tool {OUTPUT_TOOL} was not called" if missing else _cut(str(error), SHOWN_CHARS)
    parts = ["The output was not accepted.", f"Problem: {problem}."]
    if not missing:
        parts.append(f"Given: {_cut(error.raw, SHOWN_CHARS)}")
    parts.append(
        f"Call the tool {OUTPUT_TOOL} again, with the whole output, corrected to fit {expected.name}. "
        "Call it directly; do not answer in text."
    )
    text = "\n".join(parts).replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()


class TypedOutput:
    """The output of one query: judges its results, and says when the model is to be asked again.

    Args:
        expected: what the answer must be.
        repairs: how often the model may be asked again.

    Attributes:
        attempts: how often it was asked.
        rejected: what did not fit and was asked for again, in order.
    """

    def __init__(self, expected: ExpectedOutput, repairs: int) -> None:
        self._expected = expected
        self._repairs = repairs
        self._judged: tuple[ResultMessage | None, tuple[Any, Any] | StructuredOutputError] | None = None
        self.attempts = 1
        self.rejected: list[OutputRejected] = []

    def repair(self, result: ResultMessage) -> str | None:
        """The prompt that asks again after the result of the last prompt; None when it fits, or nothing helps."""
        verdict = self._repairable(result)
        if verdict is None:
            return None
        self.rejected.append(OutputRejected(verdict, self.attempts))
        self.attempts += 1
        return repair_prompt(self._expected, verdict)

    def _repairable(self, result: ResultMessage) -> StructuredOutputError | None:
        """Why its output does not fit, if the model may be asked again."""
        if self.attempts > self._repairs or not _may_be_repaired(result):
            return None
        verdict = self._judge(result)
        return verdict if isinstance(verdict, StructuredOutputError) else None

    def asks_again(self, result: ResultMessage) -> bool:
        """Whether the model was asked again after this result, or is about to be."""
        return any(each.error.result is result for each in self.rejected) or self._repairable(result) is not None

    def settle(self, answer: QueryResult, messages: Sequence[Message]) -> None:
        """Put the output into `answer`, or the error that there is none; `messages` is what is left of the answer."""
        answer.output_attempts = self.attempts if messages else 0
        verdict: tuple[Any, Any] | PilothouseError | None = answer.error
        if verdict is None:
            verdict = self._judge(closing_message(messages) or answer.result)  # a woken model gives no output
        elif isinstance(verdict, StructuredOutputError):
            verdict = self._rescued(messages, verdict)
        if isinstance(verdict, PilothouseError):
            answer.error = self.explained(verdict)
        else:
            answer.error = None
            answer.output, answer.structured = verdict

    def explained(self, error: PilothouseError) -> PilothouseError:
        """`error`, with the last output that was rejected before it as its cause. (G40)."""
        if isinstance(error, StructuredOutputError):
            error.attempts = self.attempts
        elif self.rejected:
            _append_cause(error, self.rejected[-1].error)
        return error

    def reporting(self, read: Read) -> Read:
        """`read`, which also tells of the rejected outputs."""
        passed: list[Message] = []
        told = 0

        def due() -> Iterator[AnswerEvent]:
            # Judged when its result arrives, which may be long before the reader comes to it, or, with prompts that
            # come one by one, after that.
            nonlocal told
            while told < len(self.rejected) and any(self.rejected[told].error.result is m for m in passed):
                told += 1
                yield self.rejected[told - 1]

        def with_rejections(message: Message) -> Iterator[AnswerEvent]:
            yield from due()
            yield from read(message)
            if isinstance(message, ResultMessage):
                passed.append(message)
                yield from due()

        return with_rejections

    def _judge(self, result: ResultMessage | None) -> tuple[Any, Any] | StructuredOutputError:
        if self._judged is None or self._judged[0] is not result:
            try:
                verdict = self._expected.read(result)
            except StructuredOutputError as error:
                error.result, error.attempts = result, self.attempts
                verdict = error
            self._judged = (result, verdict)
        return self._judged[1]

    def _rescued(
        self, messages: Sequence[Message], error: StructuredOutputError
    ) -> tuple[Any, Any] | StructuredOutputError:
        """The CLI gave up (it does not unwrap): the last output may fit all the same."""
        given = _last_call(messages)
        if given is _NOTHING:
            return error
        try:
            return self._expected.fit(given)
        except StructuredOutputError as unfit:
            error.value, error.raw, error.__cause__ = unfit.value, unfit.raw, unfit
            return error


def _may_be_repaired(result: ResultMessage) -> bool:
    return result.terminal_reason in _ENDED_BY_ITSELF and result_error(result) is None


def _append_cause(error: BaseException, cause: BaseException) -> None:
    while error is not cause:
        if error.__cause__ is None:
            error.__cause__ = cause
            return
        error = error.__cause__
