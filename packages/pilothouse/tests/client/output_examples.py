"""What the tests of typed output share: a type, values of it, and turns of a CLI that give them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from pilothouse.messages import ResultMessage, decode
from pilothouse_testing import FakeCLI, frames


class Invoice(msgspec.Struct):
    number: int
    paid: bool = False


GOOD = {"number": 7}
WRONG = {"number": "seven"}
ASKED_AGAIN = "The output was not accepted."


def answer(output: Any = None, text: str = "", **fields: Any) -> list[frames.Frame]:
    """A whole turn. The numbers are those of CLI 2.1.330: cost and usage by model add up, the rest is of the turn."""
    text = text or ("" if output is None else json.dumps(output))
    return [frames.init(), frames.assistant(text), frames.result(text, structured_output=output, **fields)]


def fake_turns(fake: FakeCLI, *turns: list[frames.Frame]) -> FakeCLI:
    for turn in turns:
        fake.turn(*turn)
    return fake


def result_of(text: str = "", output: Any = None, **fields: Any) -> ResultMessage:
    message = decode(json.dumps(frames.result(text, structured_output=output, **fields)).encode())
    assert isinstance(message, ResultMessage)
    return message
