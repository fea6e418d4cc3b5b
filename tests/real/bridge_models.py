"""How the scripted model speaks over each bridge: its calls, and the results that it reads."""

from __future__ import annotations

import json
import re
from typing import Any

import pilothouse as ph
from pilothouse_testing import RecordedRequest, Text, ToolUse


class Bridge:
    """How the scripted model calls a tool over one bridge, and how it sees the results."""

    def __init__(self, name: str) -> None:
        self.name = name

    def calls(self, *calls: tuple[str, dict[str, Any]], before: str = "") -> Any:
        """A reply with calls, and text before them."""
        if self.name != "xml":
            text = [Text(before)] if before else []
            return [*text, *(ToolUse(f"mcp__tools__{name}", arguments) for name, arguments in calls)]
        return lambda request: Text(before + "\n".join(_frame(nonce_of(request), *call) for call in calls))

    def results(self, request: RecordedRequest) -> list[tuple[bool, str]]:
        """The newest results, as (is_error, text)."""
        if self.name != "xml":
            return [(bool(each.is_error), each.text) for each in request.tool_results]
        nonce = nonce_of(request)
        found = re.findall(
            rf"<tool_result-{nonce}>.*?<(result|error)>(.*?)</\1></tool_result-{nonce}>", request.newest_text, re.DOTALL
        )
        return [(kind == "error", text) for kind, text in found]

    def tell(self, request: RecordedRequest) -> Text:
        """The last step of a script: say what the tools gave."""
        return Text(json.dumps(self.results(request)))


def _frame(nonce: str, name: str, arguments: dict[str, Any]) -> str:
    inside = f"<tool_name>{name}</tool_name><arguments>{json.dumps(arguments)}</arguments>"
    return f"<tool_use-{nonce}>{inside}</tool_use-{nonce}>"


def nonce_of(request: RecordedRequest) -> str:
    found = re.search(r"<tool_use-(\w+)>", json.dumps(request.body["system"]))
    assert found is not None
    return found.group(1)


def session_of(claude: Any, bridge: Bridge, *tools: Any, **settings: Any) -> ph.Session:
    return claude.session(custom_tools=list(tools), tool_bridge=bridge.name, **settings)


async def weather(city: str, units: str = "celsius") -> str:
    """The weather in a city."""
    if city == "nowhere":
        raise LookupError("no such place")
    return f"18 {units} in {city}"


def read_results(result: ph.QueryResult) -> list[tuple[bool, str]]:
    """What the scripted model said of the results, with `Bridge.tell`."""
    return [(error, text) for error, text in json.loads(result.text)]
