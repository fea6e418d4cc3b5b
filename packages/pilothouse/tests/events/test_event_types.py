"""The classes of events: their `type` tells them apart."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from pilothouse import events
from pilothouse.events import ParserEvent, QueryEvent


def event_classes() -> list[Any]:
    found: list[Any] = list(vars(events).values())
    return [each for each in found if isinstance(each, type) and each.__module__ == events.__name__]


def test_each_class_has_a_type_of_its_own() -> None:
    kinds = Counter(each.type for each in event_classes())
    assert {kind: count for kind, count in kinds.items() if count > 1} == {"finish": 2}  # the ends of two streams


def test_a_type_tells_apart_what_one_stream_sends() -> None:
    for union in (QueryEvent, ParserEvent):
        kinds = [each.type for each in get_args(union)]
        assert len(set(kinds)) == len(kinds)
    assert {*get_args(QueryEvent), *get_args(ParserEvent)} == set(event_classes())
