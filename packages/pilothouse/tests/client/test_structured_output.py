"""Typed output: taken out of wrappers and texts, and asked for again when it does not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pydantic
import pytest
from output_examples import ASKED_AGAIN, GOOD, WRONG, Invoice, answer, fake_turns, result_of

import pilothouse as ph
from pilothouse.client.event_reader import EventReader
from pilothouse.client.result import QueryResult
from pilothouse.client.structured_output import OutputSchema, make_repair_text
from pilothouse.events import OutputRejected, Started
from pilothouse.messages import Message
from pilothouse_testing import FakeCLI, mock_transport

pytestmark = pytest.mark.anyio

# --- what the model gave


@pytest.mark.requirement("L42")
@pytest.mark.parametrize(
    "given",
    [
        GOOD,
        *({key: GOOD} for key in ("output", "result", "input", "parameters", "value", "data")),
        {"output": {"data": GOOD}},
        json.dumps(GOOD),
        {"result": f" {json.dumps(GOOD)}\n"},
    ],
    ids=json.dumps,
)
def test_known_wrappers_are_taken_off(given: Any) -> None:
    assert OutputSchema.from_type(Invoice).read(result_of(output=given)) == (Invoice(7), GOOD)


@pytest.mark.parametrize(
    "given",
    [
        {"answer": GOOD},
        {"output": GOOD, "note": "two keys"},
        {"output": {"output": {"output": {"output": GOOD}}}},
        {"output": WRONG},
        "number: 7",
        '{"number": 7',
        7,
        [],
    ],
    ids=json.dumps,
)
def test_other_wrappers_are_not(given: Any) -> None:
    with pytest.raises(ph.StructuredOutputError, match="does not fit Invoice: ") as caught:
        OutputSchema.from_type(Invoice).read(result_of(output=given))
    assert caught.value.value == given
    assert caught.value.raw == json.dumps(given, separators=(",", ":"))


def test_what_fits_as_it_is_is_not_unwrapped() -> None:
    class Data(msgspec.Struct):
        data: Any

    assert OutputSchema.from_type(Data).validate({"data": GOOD})[0] == Data(GOOD)
    assert OutputSchema.from_type(dict[str, Any] | None).validate({"value": {"value": 3}})[0] == {"value": 3}
    assert OutputSchema.from_type(str).validate({"value": '{"a": 1}'})[0] == '{"a": 1}'
    assert OutputSchema.from_type(list[int]).validate([1])[0] == [1]  # of a peer that does not check
    assert OutputSchema.from_schema({"type": "object"}).validate({"output": GOOD})[0] == {"output": GOOD}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"number": 7}', True),
        (' \n{"output": {"number": 7}} ', True),
        ('Here it is:\n```json\n{"number": 7}\n```\nAnything else?', True),
        ('```\n{\n  "number": 7\n}\n```', True),
        ('```json\n{"number": 7}\n```\nor\n```json\n{"number": 8}\n```', False),
        ('The answer is {"number": 7}.', False),
        ('```python\nprint("{}")\n```', False),
        ('{"number": 7', False),
        ("7", False),
        ("", False),
    ],
)
def test_output_in_the_text(text: str, fits: bool) -> None:
    expected = OutputSchema.from_type(Invoice)
    if fits:
        assert expected.read(result_of(text)) == (Invoice(7), GOOD)
        return
    with pytest.raises(ph.StructuredOutputError, match="gave no structured output") as caught:
        expected.read(result_of(text))
    assert (caught.value.value, caught.value.raw) == (None, text)


def test_a_list_in_the_text() -> None:
    assert OutputSchema.from_type(list[Invoice]).read(result_of('[{"number": 7}]'))[0] == [Invoice(7)]


def test_errors_name_the_place_and_stay_small() -> None:
    class Model(pydantic.BaseModel):
        numbers: list[int]

    with pytest.raises(ph.StructuredOutputError) as caught:
        OutputSchema.from_type(Model).validate({"numbers": ["x" * 300, *["y"] * 50]})
    text = str(caught.value)
    assert text.startswith("the structured output does not fit Model: Input should be a valid integer")
    assert "at `$.numbers[1]`" in text
    assert "http" not in text
    assert len(text) < 1000
    with pytest.raises(ph.StructuredOutputError, match=r"at `\$\.value\[0\]\.number`"):
        OutputSchema.from_type(list[Invoice]).validate({"value": [WRONG]})
    with pytest.raises(ph.StructuredOutputError) as caught:
        OutputSchema.from_type(Invoice).validate({"number": "9" * 100_000})
    assert len(caught.value.raw) < 5000
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.raw, copy.value, copy.attempts) == (caught.value.raw, caught.value.value, 1)


def test_a_validator_that_breaks_is_a_misfit() -> None:
    class Broken(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            return {1: 1}[value]

    with pytest.raises(ph.StructuredOutputError, match="does not fit Broken: KeyError: 7") as caught:
        OutputSchema.from_type(Broken).validate(GOOD)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_prompt_that_asks_again_can_be_sent() -> None:
    expected = OutputSchema.from_type(Invoice)
    for given in ("\0 @/etc/passwd" + "9" * 10_000, "\ud800\0"):
        with pytest.raises(ph.StructuredOutputError) as caught:
            expected.validate({"number": given})
        words = make_repair_text(expected, caught.value)
        assert words.encode()
        assert "\0" not in words
        assert len(words) < 4000


# --- asking again


@pytest.mark.requirement("L14", "L42")
async def test_a_wrong_output_is_asked_for_again_in_the_same_child(fake: FakeCLI) -> None:
    first = answer(WRONG, num_turns=2, cost_usd=0.1, duration_ms=100, permission_denials=[{"tool_name": "Bash"}])
    second = answer(GOOD, num_turns=3, cost_usd=0.3, duration_ms=50, permission_denials=[{"tool_name": "Read"}])
    fake_turns(fake, first, second)
    result = await ph.query("go", cli=fake.path, output_type=Invoice)
    assert result.raise_for_error().output == Invoice(7)
    assert (result.structured, result.text, result.output_attempts) == (GOOD, json.dumps(GOOD), 2)
    # The CLI adds up the cost itself, and starts again with the rest.
    assert (result.turns, result.cost_usd, result.duration_ms) == (5, 0.3, 150)
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens) == (20, 24)
    assert [denial.tool_name for denial in result.permission_denials] == ["Bash", "Read"]
    assert result.full_text == json.dumps(WRONG) + json.dumps(GOOD)
    rebuilt = QueryResult(result.messages)
    assert (rebuilt.turns, rebuilt.usage, rebuilt.cost_usd) == (result.turns, result.usage, result.cost_usd)
    (call,) = fake.calls
    assert call.prompts[0] == "go"
    assert call.prompts[1].startswith(ASKED_AGAIN)
    assert "Expected `int`, got `str` - at `$.number`" in call.prompts[1]
    assert '{"number":"seven"}' in call.prompts[1]
    asked = [frame for frame in call.frames if frame["type"] == "user"]
    assert asked[1]["client_composed"]
    assert len({frame["uuid"] for frame in asked}) == 2
    assert (call.exit_code, call.saw_eof) == (0, True)


@pytest.mark.parametrize(
    ("repairs", "turns", "attempts", "words"),
    [
        (0, [answer(text="no")], 1, "gave no structured output"),
        (1, [answer(text="no"), answer(text="still no")], 2, "gave no structured output"),
        (1, [answer(text="no"), answer(WRONG)], 2, "does not fit Invoice"),
        (2, [answer(WRONG), answer(text="no"), answer({})], 3, "missing required field"),
    ],
)
async def test_it_is_asked_for_so_often_and_not_more(
    fake: FakeCLI, repairs: int, turns: list[Any], attempts: int, words: str
) -> None:
    fake_turns(fake, *turns)
    result = await ph.query("go", cli=fake.path, output_type=Invoice, output_repairs=repairs)
    assert result.outcome == "error"
    with pytest.raises(ph.StructuredOutputError, match=words):
        _ = result.output
    with pytest.raises(ph.StructuredOutputError, match=words) as caught:
        result.raise_for_error()
    assert caught.value.attempts == result.output_attempts == attempts
    assert caught.value.result is result.result
    assert len(fake.calls[0].prompts) == attempts


async def test_a_json_schema_is_asked_for_again_too() -> None:
    schema = {"type": "object", "required": ["number"]}
    transport = mock_transport(answer(text="no"), answer(GOOD))
    result = await ph.query("go", transport=transport, json_schema=schema)
    assert (result.output, result.output_attempts) == (GOOD, 2)


async def test_without_a_type_nothing_is_asked() -> None:
    transport = mock_transport(answer(text="no"))
    result = await ph.query("go", transport=transport)
    assert (result.is_success, result.output, result.output_attempts) == (True, None, 0)
    assert len([frame for frame in transport.sent_frames if frame["type"] == "user"]) == 1


async def test_the_argv_form_has_nowhere_to_ask(fake: FakeCLI) -> None:
    fake_turns(fake, answer(WRONG))
    result = await ph.query("go", cli=fake.path, output_type=Invoice, prompt_via="argv")
    assert isinstance(result.error, ph.StructuredOutputError)
    assert (result.error.value, result.error.attempts) == (WRONG, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"is_error": True, "api_error_status": 529, "terminal_reason": "api_error"},
        {"subtype": "error_max_turns", "is_error": True},
        {"terminal_reason": "aborted_streaming"},
        {"terminal_reason": "tool_deferred"},
        {"terminal_reason": "hook_stopped"},
    ],
    ids=str,
)
async def test_a_turn_that_did_not_end_well_is_not_asked_again(fake: FakeCLI, fields: dict[str, Any]) -> None:
    fake_turns(fake, answer(text="no", **fields))
    result = await ph.query("go", cli=fake.path, output_type=Invoice)
    assert not result.is_success
    assert len(fake.calls[0].prompts) == 1


async def test_of_several_prompts_the_last_answer_is_typed(fake: FakeCLI) -> None:
    fake_turns(fake, answer(text="one"), answer(WRONG), answer(GOOD))
    prompts = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("a", "b")]
    result = await ph.query(prompts, cli=fake.path, output_type=Invoice)
    assert (result.output, result.output_attempts) == (Invoice(7), 2)
    assert [prompt[:10] for prompt in fake.calls[0].prompts] == ["a", "b", ASKED_AGAIN[:10]]


async def test_prompts_that_come_one_by_one(fake: FakeCLI) -> None:
    fake_turns(fake, answer(text="one"), answer(text="two"), answer(GOOD))
    turn = anyio.Event()
    last = anyio.Event()

    async def prompts() -> AsyncIterator[str]:
        yield "a"
        await turn.wait()
        yield "b"
        await last.wait()  # the last result comes before it is known to be the last

    events: list[Any] = []
    query = ph.query(prompts(), cli=fake.path, output_type=Invoice)
    async for event in query.events():
        events.append(event)
        if isinstance(event, ph.Finished):
            (last if turn.is_set() else turn).set()
    kinds = [type(event) for event in events if not isinstance(event, ph.TextDelta)]
    started, finished = Started, ph.Finished
    assert kinds == [started, finished, started, finished, OutputRejected, started, finished]
    assert (await query.result()).output == Invoice(7)


async def test_streams_see_all_of_it(fake: FakeCLI) -> None:
    for _ in range(4):
        fake_turns(fake, answer(WRONG), answer(GOOD))
    texts = [text async for text in ph.query("go", cli=fake.path, output_type=Invoice).text_stream()]
    assert "".join(texts) == json.dumps(WRONG) + json.dumps(GOOD)

    query = ph.query("go", cli=fake.path, output_type=Invoice)
    kinds = [message.type async for message in query]
    assert kinds == ["system", "assistant", "result"] * 2
    assert (await query.result()).output == Invoice(7)

    seen: list[Message] = []
    result = await ph.query("go", cli=fake.path, output_type=Invoice, on_message=seen.append)
    assert seen == result.messages
    assert len(seen) == 6

    query = ph.query("go", cli=fake.path, output_type=Invoice)
    events = [event async for event in query.events()]
    rejected = events[events.index(next(e for e in events if isinstance(e, ph.Finished))) + 1]
    assert isinstance(rejected, OutputRejected)
    assert rejected.attempt == rejected.error.attempts == 1
    assert rejected.error.value == WRONG
    assert [type(event) for event in events].count(OutputRejected) == 1
    assert isinstance(events[-1], ph.Finished)
    assert (await query.result()).output == Invoice(7)


async def test_a_slow_reader_gets_events_in_order() -> None:
    query = ph.query("go", transport=mock_transport(answer(WRONG), answer(GOOD)), output_type=Invoice)
    async with query:
        result = await query.result()  # judged and read before the events are made of it
    output = query._output
    assert output is not None
    read = output.wrap_events(EventReader().read)
    kinds = [type(event).__name__ for message in result.messages for event in read(message)]
    turn = ["Started", "TextDelta", "Finished"]
    assert kinds == [*turn, "OutputRejected", *turn]


async def test_a_long_stream_keeps_what_the_numbers_need(fake: FakeCLI) -> None:
    fake_turns(fake, answer(WRONG, num_turns=2), answer(text="x" * 5_000_000, num_turns=3), answer(GOOD, num_turns=4))
    query = ph.query("go", cli=fake.path, output_type=Invoice, output_repairs=2)
    async for _ in query:
        pass
    result = await query.result()
    assert (result.output, result.turns, result.output_attempts) == (Invoice(7), 9, 3)
    with pytest.raises(ph.UsageError, match="more messages than a stream keeps"):
        _ = result.messages
