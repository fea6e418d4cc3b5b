"""Typed output of the real CLI: schemas that it takes, and the question that is asked again in the same process."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from conversations import both_loops

import pilothouse as ph
from pilothouse.events import OutputRejected
from pilothouse.messages import ResultMessage
from pilothouse.options.renderer import MAX_INLINE_BYTES
from pilothouse_testing import ScriptedModel, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@dataclass
class Line:
    what: str
    price: float


@dataclass
class Invoice:
    number: str
    day: datetime.date
    lines: list[Line] = field(default_factory=list[Line])


GOOD = {"number": "7", "day": "2026-11-22", "lines": [{"what": "rope", "price": 12.5}]}
WRONG_DAY = {**GOOD, "day": "yesterday"}  # the CLI takes formats as notes
INVOICE = Invoice("7", datetime.date(2026, 11, 22), [Line("rope", 12.5)])


def call(value: Mapping[str, Any]) -> ToolUse:
    return ToolUse("StructuredOutput", value)


def results(result: ph.QueryResult) -> list[ResultMessage]:
    return [message for message in result.messages if isinstance(message, ResultMessage)]


@both_loops
@pytest.mark.requirement("L14", "L42")
async def test_a_wrong_output_is_asked_for_again_in_one_process(claude: Any, model: ScriptedModel) -> None:
    pids: list[list[int]] = []

    def gives(*reply: str | ToolUse) -> Any:
        def answer(_: object) -> list[str | ToolUse]:
            pids.append(claude.processes())  # while the CLI waits for the model
            return list(reply)

        return answer

    model.reply(gives("Let me see.", call(WRONG_DAY)))
    model.reply(gives(call(GOOD)))
    result = await claude.ask("extract", output_type=Invoice)
    assert result.raise_for_error().output == INVOICE
    assert (result.structured, result.output_attempts) == (GOOD, 2)
    assert pids[0][0] == pids[1][0]
    first, second = results(result)
    assert first.session_id == second.session_id
    assert first.structured_output == WRONG_DAY
    asked = model.requests[1].last_user_text
    assert asked.startswith("The output was not accepted.")
    assert "Invalid RFC3339 encoded date - at `$.day`" in asked
    # Cost and usage by model are those of the process, the rest is of one turn.
    assert result.cost_usd == second.total_cost_usd == pytest.approx(2 * (first.total_cost_usd or 0), rel=0.5)
    (usage,) = result.model_usage.values()
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens) == (usage.input_tokens, usage.output_tokens)
    assert result.usage.output_tokens == first.usage.output_tokens + second.usage.output_tokens
    assert result.turns == first.num_turns + second.num_turns == 4
    assert result.duration_ms == first.duration_ms + second.duration_ms
    assert result.validate().ok
    model.assert_done()


async def test_a_model_that_only_talks(claude: Any, model: ScriptedModel) -> None:
    model.reply("I would rather not.")
    model.reply("No.")  # the CLI itself has reminded it once
    model.reply(call(GOOD))
    result = await claude.ask("extract", output_type=Invoice)
    assert (result.output, result.output_attempts) == (INVOICE, 2)
    assert [r.structured_output for r in results(result)] == [None, GOOD]
    assert "the tool StructuredOutput was not called" in model.requests[2].last_user_text

    model.default = "Never."
    query = claude.ask("extract", output_type=Invoice, output_repairs=2)
    events = [event async for event in query.events()]
    result = await query.result()
    assert isinstance(result.error, ph.StructuredOutputError)
    assert (result.error.attempts, result.error.raw) == (3, "Never.")
    assert [event.attempt for event in events if isinstance(event, OutputRejected)] == [1, 2]
    assert len(results(result)) == 3


async def test_output_in_the_text_is_taken(claude: Any, model: ScriptedModel) -> None:
    model.default = f"Here it is:\n```json\n{json.dumps(GOOD)}\n```"
    result = await claude.ask("extract", output_type=Invoice)
    assert (result.output, result.output_attempts) == (INVOICE, 1)


@pytest.mark.requirement("L14")
async def test_a_wrapped_output_survives_that_the_cli_gives_up(claude: Any, model: ScriptedModel) -> None:
    model.default = call({"output": GOOD})
    result = await claude.ask("extract", output_type=Invoice)
    assert result.result.subtype == "error_max_structured_output_retries"
    assert (result.is_success, result.output) == (True, INVOICE)

    model.default = call({"number": 7})
    result = await claude.ask("extract", output_type=Invoice)
    assert isinstance(result.error, ph.StructuredOutputError)
    assert (result.error.value, result.error.attempts) == ({"number": 7}, 1)


async def test_the_budget_counts_over_all_turns(claude: Any, model: ScriptedModel) -> None:
    model.default = call(WRONG_DAY)
    result = await claude.ask("extract", output_type=Invoice, max_budget_usd=0.001, output_repairs=5)
    assert isinstance(result.error, ph.BudgetError)
    rejected = ph.find_cause(result.error, ph.StructuredOutputError)
    assert rejected is not None
    assert rejected.value == WRONG_DAY


class Circle(msgspec.Struct, tag="circle"):
    radius: Annotated[float, msgspec.Meta(gt=0, description="in cm")]


class Square(msgspec.Struct, tag="square"):
    side: float
    inside: list[Circle | Square] = []


class Everything(msgspec.Struct, forbid_unknown_fields=True):
    """Whatever msgspec writes into a schema."""

    shape: Circle | Square
    pair: tuple[int, str]
    many: tuple[float, ...]
    code: Annotated[str, msgspec.Meta(pattern=r"(?P<letter>[a-z])\-\d+\Z", min_length=1, examples=["a-1"])]
    plain: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+$", extra_json_schema={"example": "x", "x-order": 2})]
    level: Literal["low", "high", 3]
    by_number: dict[int, str]
    when: datetime.datetime | None = None
    data: bytes = b""
    anything: Any = None
    tags: set[str] = set()


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    friends: list[Cat | Dog] = []


class Owner(pydantic.BaseModel):
    """Whatever pydantic writes into a schema."""

    model_config = pydantic.ConfigDict(json_schema_extra={"example": {}, "x-order": 1}, extra="forbid", strict=True)
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    pair: tuple[int, str] = pydantic.Field(default=(1, "a"))
    born: datetime.date = pydantic.Field(alias="birthDay", deprecated=True)
    secret: pydantic.SecretStr | None = None
    link: pydantic.AnyUrl | None = None
    count: Annotated[int, pydantic.Field(gt=0, multiple_of=2)] = 2
    json_text: pydantic.Json[list[int]] | None = None


EVERYTHING = {
    "shape": {"type": "square", "side": 2, "inside": [{"type": "circle", "radius": 1}]},
    "pair": [1, "a"],
    "many": [1, 2.5],
    "code": "a-1",
    "plain": "a.b-c",
    "level": 3,
    "by_number": {"7": "seven"},
    "when": "2026-11-22T10:00:00Z",
    "data": "eA==",
    "tags": ["x"],
}
OWNER = {"pet": {"kind": "dog", "friends": [{"kind": "cat"}]}, "birthDay": "2026-11-22", "count": 4}


@pytest.mark.sample(3)
@pytest.mark.requirement("L14")
@pytest.mark.parametrize("large", [False, True], ids=["in argv", "in the handshake"])
@pytest.mark.parametrize(
    ("output_type", "value"),
    [
        (Everything, EVERYTHING),
        (list[Everything], [EVERYTHING]),
        (Owner, OWNER),
        (dict[str, Owner] | None, {"a": OWNER}),
        (Circle | Square, {"type": "square", "side": 2}),
        (Literal["yes", "no"], "no"),
    ],
    ids=["msgspec", "msgspec list", "pydantic", "pydantic union", "union", "literal"],
)
async def test_schemas_that_the_cli_takes(
    claude: Any, model: ScriptedModel, output_type: Any, value: Any, large: bool
) -> None:
    direct = output_type in (Everything, Owner)
    if large and output_type is Owner:
        output_type = pydantic.create_model("Large", __base__=Owner, __doc__="d" * 9000)
    elif large:
        note = pydantic.Field if "Owner" in str(output_type) else msgspec.Meta
        output_type = Annotated[output_type, note(description="d" * 9000)]
    model.reply(call(value if direct else {"value": value}))
    result = await claude.ask("extract", output_type=output_type)
    assert result.raise_for_error().structured == value
    assert result.output_attempts == 1
    assert "StructuredOutput" in model.requests[0].tools
    tool = next(t for t in model.requests[0].body["tools"] if t["name"] == "StructuredOutput")
    sent = tool["input_schema"]
    assert sent["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & sent.keys()
    assert (len(msgspec.json.encode(sent)) > MAX_INLINE_BYTES) is large


async def test_a_schema_of_draft_2020_12(claude: Any, model: ScriptedModel) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False}},
        "required": ["pair"],
        "unevaluatedProperties": False,
    }
    model.reply(call({"pair": ["one"]}))  # the CLI refuses it, and tells the model
    model.reply(call({"pair": [1]}))
    result = await claude.ask("extract", output_type=schema)
    assert result.raise_for_error().output == {"pair": [1]}
    # As the option, the schema is sent as it is.
    with pytest.raises(ph.CLIExitedError, match="not a valid JSON Schema"):
        await claude.ask("extract", json_schema=schema)


@pytest.mark.parametrize("repairs", [0, 1])
async def test_a_refused_output_is_no_missing_one(claude: Any, model: ScriptedModel, repairs: int) -> None:
    model.reply(call({"number": 7}))
    model.default = "I give up"
    result = await claude.ask("extract", output_type=Invoice, output_repairs=repairs)
    assert isinstance(result.error, ph.StructuredOutputError)
    assert "refused its structured output: Output does not match required schema" in str(result.error)
    assert (result.error.value, result.error.attempts) == ({"number": 7}, 1 + repairs)
