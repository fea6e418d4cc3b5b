"""The types of the CLI's own tools: how they are made, and that recorded calls fit them."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from tests.builtin_tools import find_tool_name, make_module

import pilothouse as ph
from pilothouse.messages import ToolUseBlock
from pilothouse.provision.pinned_files import PINNED_VERSION
from pilothouse.tools import builtin, builtin_generated

CALLS = [get_args(call) for call in get_args(builtin_generated.BuiltinCall)]
TYPES_OF_TOOLS = {get_args(name)[0]: (tool_input, output) for name, tool_input, output in CALLS}


def find_misfits(value: Any, kind: Any, place: str = "") -> Iterator[str]:
    """What of a value does not fit a type of the generated module; keys that are not declared fit."""
    if kind is Any or kind is NotRequired:
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if not any(not list(find_misfits(value, each)) for each in arguments):
            yield f"{place}: {value!r:.80} is none of {kind}"
    elif origin is Literal:
        if value not in arguments:
            yield f"{place}: {value!r:.80} is none of {arguments}"
    elif is_typeddict(kind):
        yield from _find_in_dict(value, kind, place)
    elif origin in (list, dict):
        if not isinstance(value, origin):
            yield f"{place}: {value!r:.80} is no {origin.__name__}"
            return
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from find_misfits(item, arguments[-1], f"{place}.{key}")
    elif not isinstance(value, (int, float) if kind is float else kind):
        yield f"{place}: {value!r:.80} is no {kind}"


def _find_in_dict(value: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: {value!r:.80} is no object"
        return
    for key in kind.__required_keys__ - value.keys():
        yield f"{place}.{key} is missing"
    for key, member in get_type_hints(kind).items():
        if key in value:
            yield from find_misfits(value[key], member, f"{place}.{key}")


def read_calls(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """The calls of a recording: name, input, and output if it is there and no error."""
    calls: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        frame = json.loads(line).get("msg")
        if not isinstance(frame, dict) or not isinstance(frame.get("message"), dict):
            continue
        content = frame["message"].get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_use":
                calls[block["id"]] = block
                yield block["name"], block["input"], None
            output = frame.get("tool_use_result")
            if block.get("type") == "tool_result" and isinstance(output, dict) and block["tool_use_id"] in calls:
                call = calls[block["tool_use_id"]]
                yield call["name"], call["input"], output


def test_recorded_calls_fit_their_types(transcripts: list[Path]) -> None:
    seen: set[tuple[str, bool]] = set()
    for path in transcripts:
        for name, tool_input, output in read_calls(path):
            if name not in TYPES_OF_TOOLS:
                continue
            input_type, output_type = TYPES_OF_TOOLS[name]
            assert list(find_misfits(tool_input, input_type)) == [], (path.name, name)
            if output is not None:
                assert list(find_misfits(output, output_type)) == [], (path.name, name)
            seen.add((name, output is not None))
    assert {("Agent", True), ("AskUserQuestion", True), ("Bash", True), ("Write", True)} <= seen


@pytest.mark.parametrize(
    ("value", "words"),
    [({}, "command is missing"), ({"command": 1}, "is no"), ({"command": "", "timeout": "x"}, "is no")],
)
def test_a_call_that_does_not_fit_is_noticed(value: Any, words: str) -> None:
    assert words in " ".join(find_misfits(value, builtin_generated.BashInput))  # type: ignore[attr-defined]


def test_a_call_has_the_name_the_input_and_the_output() -> None:
    tool_input = {"command": "ls"}
    request = ph.PermissionRequest(tool_name="Bash", tool_input=tool_input)
    assert builtin.builtin_call(request) == ("Bash", tool_input, None)
    assert builtin.builtin_call(ToolUseBlock(id="1", name="Bash", input=tool_input)) == ("Bash", tool_input, None)
    event = ph.PostToolUseEvent(tool_name="Bash", tool_input=tool_input, tool_response={"stdout": "a"})
    assert builtin.builtin_call(event) == ("Bash", tool_input, {"stdout": "a"})
    assert builtin.builtin_call(ph.PermissionRequest(tool_name="mcp__a__b", tool_input={})) is None


def test_the_types_are_those_of_the_pinned_version() -> None:
    assert PINNED_VERSION in (builtin_generated.__doc__ or "")


TOOLS = """
export type AgentOutput =
  | { status: "done"; parts: { text: string }[] }  /* one; and; more */
  | { status: "launched"; "odd-key"?: Record<string, number | null> };
export interface FileReadInput {
  file_path: string;
  pages?: [{ a: true }] | [{ a: true }, { a: true }];
  [k: string]: unknown;
}
export type ListOutput = { from: "a" | "b" }[];
"""
MADE = """class AgentOutputDoneParts(TypedDict):
    text: str


class AgentOutputDone(TypedDict):
    status: Literal["done"]
    parts: list[AgentOutputDoneParts]


AgentOutputLaunched = TypedDict("AgentOutputLaunched", {
    "status": Literal["launched"],
    "odd-key": NotRequired[dict[str, float | None]],
})

AgentOutput: TypeAlias = AgentOutputDone | AgentOutputLaunched

class FileReadInputPages1(TypedDict):
    a: Literal[True]


class FileReadInput(TypedDict):
    file_path: str
    pages: NotRequired[list[FileReadInputPages1]]


ListOutputItem = TypedDict("ListOutputItem", {
    "from": Literal["a", "b"],
})

ListOutput: TypeAlias = list[ListOutputItem]

BuiltinCall: TypeAlias = (
    Call[Literal["Read"], FileReadInput, Any]
)
"""


def test_declarations_become_typed_dictionaries() -> None:
    text = make_module("9.9.9", TOOLS, "BUILTIN_TOOL_NAMES: readonly ['Agent', 'Read'];")
    assert "Claude Code 9.9.9" in text
    assert MADE in text


def test_a_declaration_is_that_of_the_tool_with_its_name() -> None:
    names = ["Read", "Bash", "ListMcpResourcesTool", "propose_skills"]
    stems = ["FileRead", "Bash", "ListMcpResources", "ProposeSkills", "Mcp"]
    assert [find_tool_name(stem, names) for stem in stems] == [*names, None]
