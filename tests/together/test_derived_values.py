"""Values whose class derives from str, int, float, list, dict or bytes are what they derive from, wherever they go.

Template engines (`SafeString`, `Markup`), message libraries and numpy hand out such values.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

import pilothouse as ph
from pilothouse.messages.base import to_json_values
from pilothouse.messages.json_lines import encode_json
from pilothouse.options import render
from pilothouse.protocol import encode_line
from pilothouse.tools.content import to_json_value, to_result
from pilothouse_fleet.run import digest_prompt
from pilothouse_fleet.submission import validate_key, validate_prompt
from pilothouse_models import LanguageModel
from pilothouse_remote import messages as ops
from pilothouse_testing import FakeCLI, frames, mock_transport


class Text(str):
    """As Django's `SafeString`: str() gives the same object back."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


class Whole(int):
    pass


class Real(float):
    pass


class Items(list[Any]):
    pass


class Fields(dict[str, Any]):
    pass


class Data(bytes):
    pass


GIVEN: Any = Fields({Text("key"): Items([Text("é"), Whole(1), Real(0.5), OrderedDict(a=Text("\ud800"))])})
PLAIN: Any = {"key": ["é", 1, 0.5, {"a": "\ud800"}]}


@pytest.mark.parametrize("write", [lambda value: encode_line(value), lambda value: encode_json(value)])
def test_a_writer_of_lines_writes_them(write: Any) -> None:
    assert json.loads(write(GIVEN)) == PLAIN
    assert json.loads(write(GIVEN["key"][0])) == "é"
    assert json.loads(write({Whole(7): Text("x")})) == {"7": "x"}


def test_in_plain_values_nothing_of_their_class_is_left() -> None:
    given = Items([Text("x"), Whole(1), Real(0.5)])
    for made in (to_json_values(given), to_json_value(given)):
        assert [type(item) for item in made] == [str, int, float]


@pytest.mark.parametrize("what", [Text("hi"), [Text("hi")], [Fields(type=Text("text"), text=Text("hi"))]])
@pytest.mark.anyio
async def test_a_prompt_may_be_one(what: Any) -> None:
    with FakeCLI() as fake:
        fake.text("ok")
        assert (await ph.query(what, cli=fake.path)).text == "ok"
        (prompt,) = [frame for frame in fake.calls[0].frames if frame.get("type") == "user"]
    content = prompt["message"]["content"]
    assert content in ("hi", [{"type": "text", "text": "hi"}])


@pytest.mark.anyio
async def test_messages_of_a_language_model_may_hold_them() -> None:
    turn = [frames.init(), frames.assistant("ok"), frames.result("ok")]
    part = Fields(type=Text("text"), text=Text("hi"))
    for messages in (
        Text("hi"),
        [Fields(role=Text("user"), content=Text("hi"))],
        [{"role": "user", "content": [part]}],
    ):
        model = LanguageModel(Text("opus"), transport=mock_transport(turn))
        assert (await model.generate(messages)).text == "ok"


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (Text("hi"), {"content": [{"type": "text", "text": "hi"}]}),
        ({Text("a"): 1}, {"content": [{"type": "text", "text": '{"a":1}'}], "structuredContent": {"a": 1}}),
        (Whole(3), {"content": [{"type": "text", "text": "3"}]}),
        (
            Fields(a=Text("hi")),
            {"content": [{"type": "text", "text": '{"a":"hi"}'}], "structuredContent": {"a": "hi"}},
        ),
        (
            Data(b"\x89PNG\r\n\x1a\n"),
            {"content": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]},
        ),
    ],
)
def test_a_tool_may_return_one(value: Any, result: Any) -> None:
    assert to_result(value) == result


def test_options_keep_plain_values() -> None:
    options = ph.Options(
        model=Text("opus"),
        allowed_tools=Items([Text("Read")]),
        max_turns=Whole(3),
        timeout=Real(1.5),
        env=Fields({Text("A"): Text("b")}),
        agents={Text("a"): {"description": Text("d"), "prompt": Text("p")}},
        json_schema={"type": Text("object"), "maxProperties": Whole(3)},
    )
    assert _odd(options.as_dict()) == []
    assert _odd(list(render(options, {}).argv)) == []
    json.loads(msgspec.json.encode(options.as_dict()))


def test_a_start_at_a_host_may_hold_them() -> None:
    output = ops.Attach(version=1, client="c", session=Text("s"))
    assert json.loads(ops.encode_item(output))["session"] == "s"


def test_a_fleet_keeps_plain_values() -> None:
    assert type(validate_prompt(Text("hi"))) is str
    assert type(validate_key(Text("k"))) is str
    assert _odd(validate_prompt(Items([Fields(type="text", text=Text("hi"))]))) == []
    assert digest_prompt(Text("hi"), {"a": Whole(1)}) == digest_prompt("hi", {"a": 1})


def _odd(value: Any) -> list[Any]:
    """Everything inside that is not exactly a type of JSON."""
    if type(value) is dict:
        return [odd for pair in value.items() for each in pair for odd in _odd(each)]
    if type(value) in (list, tuple):
        return [odd for each in value for odd in _odd(each)]
    return [] if value is None or type(value) in (str, int, float, bool) else [value]
