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
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from pilothouse.client.events import OutputRejected, QueryEvent
from pilothouse.client.prompt import prepare_prompts
from pilothouse.client.result import closing_message, make_result_error
from pilothouse.driver import NextPrompt, PromptMessage
from pilothouse.errors import OptionsError, PilothouseError, StructuredOutputError
from pilothouse.messages import AssistantMessage, Message, ResultMessage

if TYPE_CHECKING:
    from pilothouse.client.result import QueryResult


Schema: TypeAlias = dict[str, Any]

# The key under which a value travels whose schema cannot stand at the root.
VALUE_KEY = "value"

_DEFINITIONS = ("$defs", "definitions")
_HOISTED = tuple(f"#/{place}/" for place in _DEFINITIONS)
_UNIONS = frozenset({"anyOf", "oneOf", "allOf"})
_ROOT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

# Regular expressions that JavaScript takes with the flag "u": no inline flags, no escapes without a meaning, no lone
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
    """`schema` with only what the CLI and the API both take."""
    if not isinstance(schema, Mapping):
        return schema  # True and False are schemas, too; `dependencies` has lists of names
    source = cast("Mapping[str, Any]", schema)
    made: Schema = {
        keyword: _KEYWORD_CONVERTERS[keyword](value)
        for keyword, value in source.items()
        if keyword in _KEYWORD_CONVERTERS
    }
    notes: list[str] = []
    for adapt in (_adapt_tuple, _adapt_pattern, _adapt_dependents):
        adapt(source, made, notes)
    if notes:
        made["description"] = " ".join([*([made["description"]] if made.get("description") else ()), *notes])
    return made


def wrap_in_object(schema: Schema) -> tuple[Schema, bool]:
    """`schema` with an object at the root, and whether the value now stands under `VALUE_KEY` of it."""
    root = _inline_root_reference(schema)
    if _is_valid_root(root):
        return {"type": "object", **root}, False
    inner = {
        keyword: _rebase_references(value) for keyword, value in schema.items() if keyword not in (*_DEFINITIONS, "$id")
    }
    definitions = {keyword: _rebase_references(schema[keyword]) for keyword in _DEFINITIONS if keyword in schema}
    shell = {"type": "object", "properties": {VALUE_KEY: inner}, "required": [VALUE_KEY], "additionalProperties": False}
    return {**shell, **definitions}, True


def _is_valid_root(root: Schema) -> bool:
    is_object = root.get("type") == "object" or ("type" not in root and "properties" in root)
    names = cast("Mapping[str, Any]", root.get("properties") or {})
    return is_object and "$ref" not in root and not _UNIONS & root.keys() and all(map(_ROOT_NAME.fullmatch, names))


def _inline_root_reference(schema: Schema) -> Schema:
    """The schema with what its root refers to in the place of the reference."""
    root, seen = schema, set[str]()
    while isinstance(reference := root.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        place, _, escaped = reference.removeprefix("#/").partition("/")
        name = escaped.replace("~1", "/").replace("~0", "~")
        target = root.get(place, {}).get(name) if place in _DEFINITIONS else None
        if not isinstance(target, dict):
            return schema
        beside = {keyword: value for keyword, value in root.items() if keyword != "$ref"}
        root = {**cast("Schema", target), **beside}
        if f'"{reference}"' not in msgspec.json.encode([target, *beside[place].values()]).decode():
            root[place] = {key: value for key, value in beside[place].items() if key != name}
            if not root[place]:
                del root[place]
    return root


def _rebase_references(value: Any) -> Any:
    """The same under `VALUE_KEY`: references to the root, and to places in it, follow it there."""
    if isinstance(value, list):
        return [_rebase_references(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    made = {key: _rebase_references(item) for key, item in cast("Mapping[str, Any]", value).items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and not reference.startswith(_HOISTED):
        made["$ref"] = f"#/properties/{VALUE_KEY}{reference[1:]}"
    return made


# What one keyword becomes.


def _keep(value: Any) -> Any:
    return value


def _convert_list(value: Any) -> Any:
    if not isinstance(value, list):
        return to_portable_schema(value)
    return [to_portable_schema(item) for item in cast("list[Any]", value)]


def _convert_mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: to_portable_schema(schema) for name, schema in cast("Mapping[str, Any]", value).items()}


def _convert_patterns(value: Any) -> Any:
    named = cast("dict[str, Any]", _convert_mapping(value))
    return {usable: schema for pattern, schema in named.items() if (usable := _portable_pattern(pattern)) is not None}


# The keywords of draft 07 that 2020-12 has too, with the rule for what stands under them. All others are left out:
# `$schema` (only draft 07 is taken), `discriminator`, `prefixItems`, `unevaluatedProperties`, `x-…` and the like.
_KEYWORD_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "$comment", "$id", "$ref", "const", "contentEncoding", "contentMediaType", "default", "deprecated",
            "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems",
            "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
            "readOnly", "required", "title", "type", "uniqueItems", "writeOnly",
        ),
        _keep,
    ),
    **dict.fromkeys(
        (
            "additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items", "not", "oneOf",
            "propertyNames", "then",
        ),
        _convert_list,
    ),
    **dict.fromkeys(("$defs", "definitions", "dependencies", "properties"), _convert_mapping),
    "patternProperties": _convert_patterns,
}  # fmt: skip


# What needs more than one keyword.


def _adapt_tuple(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    """A schema for each position: draft 07 and 2020-12 have different words for it, so all positions share one."""
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
    listed = "; ".join(f"{at}. {_to_json_text(schema)}" for at, schema in enumerate(given, 1))
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


def _adapt_dependents(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    for keyword, rule in (("dependentRequired", _keep), ("dependentSchemas", _convert_mapping)):
        if isinstance(source.get(keyword), Mapping):
            made["dependencies"] = {**made.get("dependencies", {}), **rule(source[keyword])}


def _portable_pattern(pattern: str) -> str | None:
    usable = re.sub(r"\(\?P=(\w+)\)", r"\\k<\1>", pattern.replace("(?P<", "(?<"))
    fits = _PORTABLE_PATTERN.fullmatch(usable) and not _CLASS_IN_RANGE.search(usable)
    return usable if fits else None


def _to_json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


Read: TypeAlias = Callable[[Message], Iterator[QueryEvent]]

OUTPUT_TOOL = "StructuredOutput"  # how the CLI (2.1.330) calls the tool that takes the output

# Keys under which models like to put the whole value although nobody asked for it.
WRAPPERS = frozenset({"output", "result", "input", "parameters", "value", "data"})
UNWRAP_DEPTH = 3

RAW_CHARS = 4000  # of what the model gave, kept on the error
SHOWN_CHARS = 1500  # of it, and of the problem, in the prompt that asks again
SHOWN_PROBLEMS = 8

# Turns that ended otherwise were stopped on purpose (a hook, a limit, a tool left to the host): nobody asks again.
_NORMAL_REASONS = (None, "completed")
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)
_NOTHING: Any = object()


# What the answer must be.


@dataclass(frozen=True, slots=True)
class OutputSchema:
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
    def from_type(cls, output_type: Any) -> OutputSchema:
        """From a type, or from a JSON Schema as a mapping. (L14)

        Raises:
            OptionsError: no schema can be made of it.
        """
        try:
            if isinstance(output_type, Mapping):
                _check_schema(cast("Mapping[str, Any]", output_type), "output_type")
            source, convert = _schema_and_converter(output_type)
            schema, wrapped = wrap_in_object(to_portable_schema(source))
            msgspec.json.encode(schema)
        except OptionsError:
            raise
        except Exception as error:
            raise OptionsError(
                f"output_type: {_describe_schema_error(output_type, error)}", option="output_type"
            ) from error
        return cls(_type_name(output_type), schema, wrapped, convert)

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> OutputSchema:
        """From the option `json_schema`, which is sent as it is.

        Raises:
            OptionsError: it is no valid schema.
        """
        _check_schema(schema, "json_schema")
        return cls("the JSON Schema", dict(schema), False, _make_checker(schema))

    def read(self, result: ResultMessage | None) -> tuple[Any, Any]:
        """The output and its plain form.

        Raises:
            StructuredOutputError: there is none, or it does not fit.
        """
        given = _NOTHING
        if result is not None:
            given = _find_json(result.result or "") if result.structured_output is None else result.structured_output
        if given is not _NOTHING:
            return self.validate(given)
        raise StructuredOutputError(
            "the model gave no structured output; ask for it in the prompt, or simplify the schema",
            result=result,
            raw=_cut((result.result or "") if result is not None else "", RAW_CHARS),
        )

    def validate(self, given: Any) -> tuple[Any, Any]:
        """What `given` is, as it stands or out of a known wrapper, and its plain form. (L42)

        Raises:
            StructuredOutputError: neither fits; it tells why `given` as it stands does not.
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
    from pilothouse.json_schema import find_schema_problem  # types make valid ones

    if (problem := find_schema_problem(schema)) is not None:
        raise OptionsError(f"{option}: this is no valid JSON Schema: {problem[0]} - at `{problem[1]}`", option=option)


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
    if _uses_pydantic(output_type):
        return _schema_and_converter(import_module("pydantic").TypeAdapter(output_type))
    return msgspec.json.schema(output_type), lambda value: msgspec.convert(value, output_type, str_keys=True)


def _find_method(owner: Any, name: str) -> Callable[[Any], Any]:
    # From JSON: a strict model takes a date, a tuple or a set only from there.
    from_json = getattr(owner, f"{name}_json", None)
    if from_json is not None:
        return lambda value: from_json(msgspec.json.encode(value))
    return getattr(owner, name, None) or owner.validate_python


def _uses_pydantic(part: Any, seen: set[int] | None = None) -> bool:
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
    return any(_uses_pydantic(each, seen) for each in inside)


def _fields(part: Any) -> tuple[Any, ...]:
    try:
        return tuple(typing.get_type_hints(part, include_extras=True).values()) if isinstance(part, type) else ()
    except Exception:  # noqa: BLE001 - a name that cannot be resolved; whoever makes the schema says so
        return ()


def _make_checker(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    from pilothouse.json_schema import make_checker  # types check for themselves

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


# What the model gave.


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


def _find_json(text: str) -> Any:
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


def _describe_problem(error: Exception, wrapped: bool) -> str:
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


def make_repair_text(schema: OutputSchema, error: StructuredOutputError) -> str:
    """The user message that asks for the output again: what was wrong, what was given, what to do."""
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


class OutputValidator:
    """The output of one query: judges its results, and says when the model is to be asked again.

    Args:
        expected: what the answer must be.
        repairs: how often the model may be asked again.

    Attributes:
        attempts: how often it was asked.
        rejected: what did not fit and was asked for again, in order.
    """

    def __init__(self, expected: OutputSchema, repairs: int) -> None:
        self._expected = expected
        self._repairs = repairs
        self._last_verdict: tuple[ResultMessage | None, tuple[Any, Any] | StructuredOutputError] | None = None
        self.attempts = 1
        self.rejected: list[OutputRejected] = []

    def make_repair_prompt(self, result: ResultMessage) -> str | None:
        """The prompt that asks again after the result of the last prompt; None when it fits, or nothing helps."""
        verdict = self._repairable_error(result)
        if verdict is None:
            return None
        self.rejected.append(OutputRejected(verdict, self.attempts))
        self.attempts += 1
        return make_repair_text(self._expected, verdict)

    def _repairable_error(self, result: ResultMessage) -> StructuredOutputError | None:
        """Why its output does not fit, if the model may be asked again."""
        if self.attempts > self._repairs or not _is_repairable(result):
            return None
        verdict = self._validate(result)
        return verdict if isinstance(verdict, StructuredOutputError) else None

    def is_repaired(self, result: ResultMessage) -> bool:
        """Whether the model was asked again after this result, or is about to be."""
        return any(each.error.result is result for each in self.rejected) or self._repairable_error(result) is not None

    def apply_to(self, result: QueryResult, messages: Sequence[Message]) -> None:
        """Put the output into `answer`, or the error that there is none; `messages` is what is left of the answer."""
        result.output_attempts = self.attempts if messages else 0
        verdict: tuple[Any, Any] | PilothouseError | None = result.error
        if verdict is None:
            verdict = self._validate(closing_message(messages) or result.result)  # a woken model gives no output
        elif isinstance(verdict, StructuredOutputError):
            verdict = self._validate_last_call(messages, verdict)
        if isinstance(verdict, PilothouseError):
            result.error = self.add_cause(verdict)
        else:
            result.error = None
            result.output, result.structured = verdict

    def add_cause(self, error: PilothouseError) -> PilothouseError:
        """`error`, with the last output that was rejected before it as its cause. (G40)."""
        if isinstance(error, StructuredOutputError):
            error.attempts = self.attempts
        elif self.rejected:
            _append_cause(error, self.rejected[-1].error)
        return error

    def add_events(self, read: Read) -> Read:
        """`read`, which also tells of the rejected outputs."""
        passed: list[Message] = []
        told = 0

        def due() -> Iterator[QueryEvent]:
            # Judged when its result arrives, which may be long before the reader comes to it, or, with prompts that
            # come one by one, after that.
            nonlocal told
            while told < len(self.rejected) and any(self.rejected[told].error.result is m for m in passed):
                told += 1
                yield self.rejected[told - 1]

        def with_rejections(message: Message) -> Iterator[QueryEvent]:
            yield from due()
            yield from read(message)
            if isinstance(message, ResultMessage):
                passed.append(message)
                yield from due()

        return with_rejections

    def _validate(self, result: ResultMessage | None) -> tuple[Any, Any] | StructuredOutputError:
        if self._last_verdict is None or self._last_verdict[0] is not result:
            try:
                verdict = self._expected.read(result)
            except StructuredOutputError as error:
                error.result, error.attempts = result, self.attempts
                verdict = error
            self._last_verdict = (result, verdict)
        return self._last_verdict[1]

    def _validate_last_call(
        self, messages: Sequence[Message], error: StructuredOutputError
    ) -> tuple[Any, Any] | StructuredOutputError:
        """The CLI gave up (it does not unwrap): the last output may fit all the same."""
        given = _last_call(messages)
        if given is _NOTHING:
            return error
        try:
            return self._expected.validate(given)
        except StructuredOutputError as unfit:
            error.value, error.raw, error.__cause__ = unfit.value, unfit.raw, unfit
            return error


def _is_repairable(result: ResultMessage) -> bool:
    return result.terminal_reason in _NORMAL_REASONS and make_result_error(result) is None


def _append_cause(error: BaseException, cause: BaseException) -> None:
    while error is not cause:
        if error.__cause__ is None:
            error.__cause__ = cause
            return
        error = error.__cause__


class OutputRepair:
    """Asks again for what does not fit; a continuation.

    Without a call of its output tool the CLI still reports success (2.1.330), so the check is ours.

    Args:
        output: judges the results.
    """

    def __init__(self, output: OutputValidator) -> None:
        self._output = output

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """All of it: the consumer sees what was rejected, too."""
        return batch

    async def after_result(self, result: ResultMessage) -> NextPrompt:
        """The prompt that asks for the output again, if it does not fit and asking may help."""
        words = self._output.make_repair_prompt(result)
        if words is None:
            return NextPrompt()
        # Verbatim: it quotes the model, and an `@path` in that must not be read.
        [prompt] = cast("tuple[PromptMessage]", prepare_prompts(words, verbatim=True))
        return NextPrompt(prompt)
