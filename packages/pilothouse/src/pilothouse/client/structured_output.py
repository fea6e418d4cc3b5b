"""Structured output: the schema, the validation of the answer, and the prompt that asks again.

The JSON Schema has the form that both the CLI and the API accept. Loaded only by queries that ask for output.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import msgspec

from pilothouse.client.middleware import Middleware, ReadEvents, append_cause
from pilothouse.client.result import closing_message, make_result_error
from pilothouse.engine import NextPrompt
from pilothouse.errors import OptionsError, PilothouseError, StructuredOutputError
from pilothouse.events import OutputRejected, QueryEvent
from pilothouse.json_schema import (
    DEFINITIONS,
    INNER_SCHEMAS,
    NAMED_SCHEMAS,
    convert_inner,
    find_schema_problem,
    inline_root_reference,
    make_checker,
    mentions_pydantic,
)
from pilothouse.messages import AssistantMessage, Message, ResultMessage, UserMessage
from pilothouse.options import Options

if TYPE_CHECKING:
    from pilothouse.client.result import QueryResult


Schema: TypeAlias = dict[str, Any]

# The key of a value whose schema cannot be at the root.
VALUE_KEY = "value"

_HOISTED = tuple(f"#/{place}/" for place in DEFINITIONS)
_UNIONS = frozenset({"anyOf", "oneOf", "allOf"})
_ROOT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

# Regular expressions that JavaScript accepts with the flag "u": no inline flags, no meaningless escapes, no lone
# brackets. `(?P<name>…)` is rewritten before.
_ESCAPE = r"(?:[dDwWsSfnrtv^$\\.*+?()\[\]{}|/1-9]|0(?!\d)|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP]\{\w+(?:=\w+)?\})"
_PORTABLE_PATTERN = re.compile(
    rf"""(?:
        [^\\\[\]{{}}(]
      | \\(?:{_ESCAPE}|[bB]|k<\w+>)
      | \[\^?(?:[^\\\]\[]|\\(?:{_ESCAPE}|[b-]))*\]
      | \{{\d+(?:,\d*)?\}}
      | \((?:(?!\?)|\?(?::|=|!|<=|<!|<[A-Za-z_]\w*>))
    )*""",
    re.VERBOSE,
)
_CLASS_IN_RANGE = re.compile(r"\\[dDwWsS]-[^\]]|[^\[\\^]-\\[dDwWsS]")


def to_portable_schema(schema: Any) -> Any:
    """Return `schema` with only what both the CLI and the API accept."""
    if not isinstance(schema, Mapping):
        return schema  # True and False are schemas, too; `dependencies` has lists of names
    source = cast("Mapping[str, Any]", schema)
    made: Schema = {
        keyword: convert_inner(keyword, value, to_portable_schema)
        for keyword, value in source.items()
        if keyword in _PORTABLE_KEYWORDS
    }
    notes: list[str] = []
    for adapt in (_adapt_tuple, _adapt_pattern, _adapt_property_patterns, _adapt_dependents):
        adapt(source, made, notes)
    if notes:
        made["description"] = " ".join([*([made["description"]] if made.get("description") else ()), *notes])
    return made


def wrap_in_object(schema: Schema) -> tuple[Schema, bool]:
    """Return `schema` with an object at the root, and whether the value is now under `VALUE_KEY` of it."""
    root = inline_root_reference(schema)
    if _is_valid_root(root):
        return {"type": "object", **root}, False
    inner = {
        keyword: _rebase_references(value) for keyword, value in schema.items() if keyword not in (*DEFINITIONS, "$id")
    }
    definitions = {keyword: _rebase_references(schema[keyword]) for keyword in DEFINITIONS if keyword in schema}
    shell = {"type": "object", "properties": {VALUE_KEY: inner}, "required": [VALUE_KEY], "additionalProperties": False}
    return {**shell, **definitions}, True


def _is_valid_root(root: Schema) -> bool:
    is_object = root.get("type") == "object" or ("type" not in root and "properties" in root)
    names = cast("Mapping[str, Any]", root.get("properties") or {})
    return is_object and "$ref" not in root and not _UNIONS & root.keys() and all(map(_ROOT_NAME.fullmatch, names))


def _rebase_references(value: Any) -> Any:
    """Adapt references for a schema that moves under `VALUE_KEY`."""
    if isinstance(value, list):
        return [_rebase_references(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    made = {key: _rebase_references(item) for key, item in cast("Mapping[str, Any]", value).items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and not reference.startswith(_HOISTED):
        made["$ref"] = f"#/properties/{VALUE_KEY}{reference[1:]}"
    return made


# The keywords of draft 07 that 2020-12 has too. All others are left out, such as `$schema` (only draft 07 is
# accepted), `discriminator`, `prefixItems`, `unevaluatedProperties` and `x-…`.
_PORTABLE_KEYWORDS = (INNER_SCHEMAS | NAMED_SCHEMAS).difference(
    ("additionalItems", "dependentSchemas", "prefixItems")
).union((
    "$comment", "$id", "$ref", "const", "contentEncoding", "contentMediaType", "default", "deprecated",
    "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems",
    "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "readOnly", "required", "title", "type", "uniqueItems", "writeOnly",
))  # fmt: skip


# Adaptations of what differs between the drafts, or between Python and JavaScript.


def _adapt_tuple(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    """Make one schema for all positions: draft 07 and 2020-12 have different keywords for tuples."""
    old = isinstance(source.get("items"), list)
    positions = source.get("items") if old else source.get("prefixItems")
    if not isinstance(positions, list):
        return
    given = [to_portable_schema(schema) for schema in cast("list[Any]", positions)]
    rest = to_portable_schema(source.get("additionalItems" if old else "items", True))
    made.pop("items", None)
    if rest is False:
        made["maxItems"] = min(len(given), made.get("maxItems", len(given)))
    closed = made.get("maxItems", len(given) + 1) <= len(given)
    kinds = [*given, *([] if closed else [rest])]
    distinct = [schema for at, schema in enumerate(kinds) if schema not in kinds[:at]]
    if closed or rest is not True:
        made["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    listed = "; ".join(f"{at}. {_json(schema)}" for at, schema in enumerate(given, 1))
    notes.append(f"Items by position: {listed}.")


def _adapt_pattern(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    pattern = source.get("pattern")
    if not isinstance(pattern, str):
        return
    usable = _portable_pattern(pattern)
    if usable is None:
        notes.append(f"Matches the regular expression {pattern}")
    else:
        made["pattern"] = usable


def _adapt_property_patterns(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    if "patternProperties" in made:
        named = cast("Mapping[str, Any]", made["patternProperties"]).items()
        made["patternProperties"] = {
            usable: schema for pattern, schema in named if (usable := _portable_pattern(pattern)) is not None
        }


def _adapt_dependents(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    for keyword in ("dependentRequired", "dependentSchemas"):
        if isinstance(source.get(keyword), Mapping):
            dependents = convert_inner(keyword, source[keyword], to_portable_schema)
            made["dependencies"] = {**made.get("dependencies", {}), **dependents}


def _portable_pattern(pattern: str) -> str | None:
    usable = re.sub(r"\(\?P=(\w+)\)", r"\\k<\1>", pattern.replace("(?P<", "(?<"))
    fits = _PORTABLE_PATTERN.fullmatch(usable) and not _CLASS_IN_RANGE.search(usable)
    return usable if fits else None


OUTPUT_TOOL = "StructuredOutput"  # the CLI's name of the tool that takes the output

# Keys under which models like to put the whole value, although not asked to.
WRAPPERS = frozenset({"output", "result", "input", "parameters", "value", "data"})
UNWRAP_DEPTH = 3

RAW_CHARS = 4000  # of the model's output, kept on the error
SHOWN_CHARS = 1500  # of the output, and of the problem, in the repair prompt
SHOWN_PROBLEMS = 8

# Turns that ended otherwise were stopped on purpose (a hook, a limit, a deferred tool): no repair.
_NORMAL_REASONS = (None, "completed")
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)
_NOTHING: Any = object()


# The schema of the answer.


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The type or schema that the answer must fit.

    Attributes:
        name: of the type, for messages.
        schema: for the CLI; an object at the root.
        wrapped: whether the value is under one key of that object.
        convert: converts the output to the type; raises any exception if it does not fit.
        TOOL: name of the tool with which the model gives an output.
    """

    TOOL: ClassVar[str] = OUTPUT_TOOL

    name: str
    schema: Schema
    wrapped: bool
    convert: Callable[[Any], Any]

    @classmethod
    def from_type(cls, output_type: Any) -> OutputSchema:
        """Make it from a type, or from a JSON Schema as a mapping.

        Raises:
            OptionsError: there is no schema for the type.
        """
        try:
            if isinstance(output_type, Mapping):
                _check_schema(cast("Mapping[str, Any]", output_type), "output_type")
            source, convert = _schema_and_converter(output_type)
            schema, wrapped = wrap_in_object(to_portable_schema(source))
            msgspec.json.encode(schema)
        except OptionsError:
            raise
        except Exception as error:  # noqa: BLE001 - the type may be anything; the text of the error says it
            raise OptionsError(
                f"output_type: {_describe_schema_error(output_type, error)}", option="output_type"
            ) from None
        return cls(_type_name(output_type), schema, wrapped, convert)

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> OutputSchema:
        """Make it from the option `json_schema`, which is sent unchanged.

        Raises:
            OptionsError: the schema is not valid.
        """
        _check_schema(schema, "json_schema")
        return cls("the JSON Schema", dict(schema), False, _make_checker(schema))

    @staticmethod
    def find_json(text: str) -> Any:
        """Decode a text, or its only fenced block, if that is an object or list; else None."""
        whole = _decoded(text)
        fenced = _FENCED.findall(text)
        if whole is _NOTHING and len(fenced) == 1:
            whole = _decoded(fenced[0])
        return None if whole is _NOTHING else whole

    def read(self, result: ResultMessage | None) -> tuple[Any, Any]:
        """Return the output of a result, converted and as plain values.

        Raises:
            StructuredOutputError: there is no output, or it does not fit.
        """
        given: Any = None
        if result is not None:
            in_text = result.structured_output is None
            given = self.find_json(result.result or "") if in_text else result.structured_output
        if given is not None:
            return self.validate(given)
        raise StructuredOutputError(
            "the model gave no structured output; ask for it in the prompt, or simplify the schema",
            result=result,
            raw=_cut((result.result or "") if result is not None else "", RAW_CHARS),
        )

    def validate(self, given: Any) -> tuple[Any, Any]:
        """Return `given`, or the content of a known wrapper, converted and as plain values.

        Raises:
            StructuredOutputError: neither fits; the error is that of `given` itself.
        """
        first: Exception | None = None
        for plain in self._candidates(given):
            try:
                return self.convert(plain), plain
            except Exception as error:  # noqa: BLE001 - a validator of the caller may raise anything
                first = first or error
        assert first is not None
        raise StructuredOutputError(
            f"the structured output does not fit {self.name}: {_describe_problem(first, self.wrapped)}",
            value=given,
            raw=_cut(_json(given), RAW_CHARS),
        ) from first

    def _candidates(self, given: Any) -> Iterator[Any]:
        if self.wrapped and isinstance(given, dict) and given.keys() == {VALUE_KEY}:
            yield from _unwrap_candidates(given[VALUE_KEY], UNWRAP_DEPTH)
        yield from _unwrap_candidates(given, UNWRAP_DEPTH)


def _check_schema(schema: Mapping[str, Any], option: str) -> None:
    if (problem := find_schema_problem(schema)) is not None:
        raise OptionsError(
            f"{option}: this is not a valid JSON Schema: {problem.text} - at `{problem.path}`", option=option
        )


def _describe_schema_error(output_type: Any, error: Exception) -> str:
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
        return schema, _make_checker(schema)
    if hasattr(output_type, "model_json_schema"):
        return output_type.model_json_schema(), _find_method(output_type, "model_validate")
    if hasattr(output_type, "json_schema") and hasattr(output_type, "validate_python"):
        return output_type.json_schema(), _find_method(output_type, "validate")
    if "pydantic" in sys.modules and mentions_pydantic(output_type):
        return _schema_and_converter(import_module("pydantic").TypeAdapter(output_type))
    return msgspec.json.schema(output_type), lambda value: msgspec.convert(value, output_type, str_keys=True)


def _find_method(owner: Any, name: str) -> Callable[[Any], Any]:
    # From JSON: a strict model accepts a date, a tuple or a set only in that form.
    from_json = getattr(owner, f"{name}_json", None)
    if from_json is not None:
        return lambda value: from_json(msgspec.json.encode(value))
    return getattr(owner, name, None) or owner.validate_python


def _make_checker(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    problems_with = make_checker(schema)

    def check(value: Any) -> Any:
        if problems := problems_with(value):
            raise ValueError("; ".join(f"{text} - at `{path}`" for path, text in problems[:SHOWN_PROBLEMS]))
        return value

    return check


def _type_name(output_type: Any) -> str:
    if isinstance(output_type, Mapping):
        return str(cast("Mapping[str, Any]", output_type).get("title") or "the JSON Schema")
    if isinstance(output_type, type) and not typing.get_args(output_type):
        return output_type.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(output_type))


# The output of the model.


def _unwrap_candidates(given: Any, depth: int) -> Iterator[Any]:
    yield given
    inner = _unwrap_once(given)
    if depth and inner is not _NOTHING:
        yield from _unwrap_candidates(inner, depth - 1)


def _unwrap_once(given: Any) -> Any:
    if isinstance(given, str):
        return _decoded(given)
    if isinstance(given, dict) and len(cast("dict[str, Any]", given)) == 1:
        [(key, inner)] = cast("dict[str, Any]", given).items()
        return inner if key in WRAPPERS else _NOTHING
    return _NOTHING


def _decoded(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        return _NOTHING
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _last_call(messages: Sequence[Message]) -> Any:
    """Return the input of the last call of the output tool."""
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
            for call in reversed(message.tool_uses):
                if call.name == OUTPUT_TOOL:
                    return call.input
    return _NOTHING


def _describe_problem(error: Exception, wrapped: bool) -> str:
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic: its own text has a line and a web address for each error
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


# The repair prompt.


def make_repair_text(schema: OutputSchema, error: StructuredOutputError) -> str:
    """Make the user message that asks for the output again: what was wrong, what was given, what to do."""
    missing = error.__cause__ is None
    problem = f"the tool {OUTPUT_TOOL} was not called" if missing else _cut(str(error), SHOWN_CHARS)
    parts = ["The output was not accepted.", f"Problem: {problem}."]
    if not missing:
        parts.append(f"Given: {_cut(error.raw, SHOWN_CHARS)}")
    parts.append(
        f"Call the tool {OUTPUT_TOOL} again, with the whole output, corrected to fit {schema.name}. "
        "Call it directly; do not answer in text."
    )
    text = "\n".join(parts).replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()


class OutputValidator(Middleware):
    """Validates the output of one query, and asks again for output that does not fit.

    Without a call of its output tool the CLI still reports success, so the check is ours.

    Args:
        expected: the schema of the answer.
        repairs: how often the model may be asked again.

    Attributes:
        attempts: how often the model was asked.
        rejected: the outputs that did not fit and were requested again, in order.
    """

    def __init__(self, expected: OutputSchema, repairs: int) -> None:
        self._expected = expected
        self._repairs = repairs
        self._last_check: tuple[ResultMessage | None, tuple[Any, Any] | StructuredOutputError] | None = None
        self._calls: dict[str, Any] = {}  # of the output tool, without a result: the outputs, by id
        self._refusal: tuple[Any, str] | None = None
        self.attempts = 1
        self.rejected: list[OutputRejected] = []

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Validate outputs as they arrive. In a loop of the user, the error would keep the loop, and so the query."""
        for message in batch:
            if isinstance(message, ResultMessage):
                self._repairable_error(message)
            elif isinstance(message, AssistantMessage | UserMessage) and message.parent_tool_use_id is None:
                self._note_refusal(message)
        return batch

    def _note_refusal(self, message: AssistantMessage | UserMessage) -> None:
        """Keep the last output that the CLI has refused, and why: a model may give up after that."""
        if isinstance(message, AssistantMessage):
            self._calls |= {call.id: call.input for call in message.tool_uses if call.name == OUTPUT_TOOL}
            return
        for result in message.tool_results:
            given = self._calls.pop(result.tool_use_id, _NOTHING)
            if given is not _NOTHING:
                self._refusal = (given, result.text) if result.is_error else None

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Return the prompt that asks for the output again, if it does not fit and a repair is possible."""
        error = self._repairable_error(result)
        if error is None:
            return None
        self.rejected.append(OutputRejected(error, self.attempts))
        self.attempts += 1
        return self.make_next_prompt(make_repair_text(self._expected, error))

    def _repairable_error(self, result: ResultMessage) -> StructuredOutputError | None:
        """The reason why the output does not fit, if the model may be asked again."""
        if self.attempts > self._repairs or result.terminal_reason not in _NORMAL_REASONS:
            return None
        if make_result_error(result) is not None:
            return None
        checked = self._validate(result)
        return checked if isinstance(checked, StructuredOutputError) else None

    def is_repaired(self, result: ResultMessage) -> bool:
        """Whether the model was asked again after this result, or is about to be."""
        return any(each.error.result is result for each in self.rejected) or self._repairable_error(result) is not None

    def complete_result(self, result: QueryResult[Any], messages: Sequence[Message]) -> None:
        """Set the output of `result`, or its error."""
        result.output_attempts = self.attempts if messages else 0
        checked: tuple[Any, Any] | PilothouseError | None = result.error
        if checked is None:
            checked = self._validate(closing_message(messages) or result.result)  # a woken turn has no output
        elif isinstance(checked, StructuredOutputError):
            checked = self._validate_last_call(messages, checked)
        if isinstance(checked, PilothouseError):
            result.error = checked
        else:
            result.error = None
            result.output, result.structured = checked

    def explain(self, error: PilothouseError) -> None:
        """Chain the last rejected output to `error` as its cause."""
        if isinstance(error, StructuredOutputError):
            error.attempts = self.attempts
        elif self.rejected:
            append_cause(error, self.rejected[-1].error)

    def wrap_events(self, read: ReadEvents) -> ReadEvents:
        """Wrap `read` to add events of rejected outputs."""
        passed: list[Message] = []
        reported = 0

        def due() -> Iterator[QueryEvent]:
            # An output is validated when its result arrives. The reader may get there much later, or, with prompts
            # that come one by one, earlier.
            nonlocal reported
            while reported < len(self.rejected) and any(self.rejected[reported].error.result is m for m in passed):
                reported += 1
                yield self.rejected[reported - 1]

        def with_rejections(message: Message) -> Iterator[QueryEvent]:
            yield from due()
            yield from read(message)
            if isinstance(message, ResultMessage):
                passed.append(message)
                yield from due()

        return with_rejections

    def _validate(self, result: ResultMessage | None) -> tuple[Any, Any] | StructuredOutputError:
        if self._last_check is None or self._last_check[0] is not result:
            try:
                checked = self._expected.read(result)
            except StructuredOutputError as error:
                is_missing = error.__cause__ is None
                checked = self._explain_missing(error) if is_missing and self._refusal is not None else error
            if isinstance(checked, StructuredOutputError):
                checked.result, checked.attempts = result, self.attempts
            self._last_check = (result, checked)
        return self._last_check[1]

    def _explain_missing(self, error: StructuredOutputError) -> tuple[Any, Any] | StructuredOutputError:
        """Take the output that the CLI has refused, as it may fit; else say in the error why it was refused."""
        assert self._refusal is not None
        given, reason = self._refusal
        try:
            return self._expected.validate(given)
        except StructuredOutputError as unfit:
            explained = StructuredOutputError(
                f"the model gave up after Claude Code had refused its structured output: {_cut(reason, SHOWN_CHARS)}",
                value=unfit.value,
                raw=unfit.raw,
            )
            explained.__cause__ = unfit
            return explained

    def _validate_last_call(
        self, messages: Sequence[Message], error: StructuredOutputError
    ) -> tuple[Any, Any] | StructuredOutputError:
        """Validate the last output after the CLI gave up: the CLI does not unwrap, so the output may fit."""
        given = _last_call(messages)
        if given is _NOTHING:
            return error
        try:
            return self._expected.validate(given)
        except StructuredOutputError as unfit:
            error.value, error.raw, error.__cause__ = unfit.value, unfit.raw, unfit
            return error


def make_output_validator(options: Options, output_type: Any) -> tuple[Options, OutputValidator]:
    """Return the options of a query with this type of output, or with a schema, and what checks its answer.

    Raises:
        OptionsError: the options have another schema.
    """
    schema = options.json_schema
    repairs = options.output_repairs if options.prompt_via == "stdin" else 0
    if output_type is None:
        return options, OutputValidator(OutputSchema.from_schema(schema or {}), repairs)
    expected = OutputSchema.from_type(output_type)
    if schema is not None and schema != expected.schema:
        raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
    return options.with_(json_schema=expected.schema), OutputValidator(expected, repairs)
