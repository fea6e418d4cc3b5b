"""The client of the official `mcp` package talks to our servers, through the dispatcher."""

from __future__ import annotations

from typing import Any

import anyio
import mcp.types
import pytest
from mcp import MCPError
from tool_fixtures import official_client

from pilothouse.tools import (
    SdkServer,
    ToolContext,
    ToolError,
    audio_content,
    embedded_resource,
    prompt,
    resource,
    resource_link,
    sdk_server,
    tool,
)
from pilothouse.tools.mcp_dispatcher import make_mcp_dispatcher

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"


@tool(annotations={"title": "Sum", "readOnlyHint": True})
async def add(a: int, b: int = 1) -> dict[str, int]:
    """Add."""
    return {"sum": a + b}


@tool
async def everything() -> Any:
    return (
        "text",
        PNG,
        audio_content(b"RIFF\0\0\0\0WAVE"),
        resource_link("file:///a", "a"),
        embedded_resource("file:///b", "hi"),
    )


@tool
def fail() -> None:
    raise ToolError("no")


@tool
async def slow(context: ToolContext) -> str:
    for step in range(3):
        context.progress(step + 1, 3, f"step {step + 1}")
    return "done"


@resource("note://{name}", mime_type="text/markdown")
def note(name: str) -> str:
    return f"# {name}"


@prompt()
def ask(topic: str) -> list[Any]:
    """Ask about it."""
    return [f"What is {topic}?", PNG]


def server() -> SdkServer:
    fixed = resource("config://app", content={"debug": True}, name="app")
    return sdk_server("s", [add, everything, fail, slow], [note, fixed], [ask], version="2.0", instructions="Ask.")


@pytest.mark.requirement("R23", "R24")
async def test_tools_as_the_official_client_sees_them() -> None:
    with anyio.fail_after(10):
        async with official_client(make_mcp_dispatcher({"s": server()})) as client:
            assert client.server_info.name == "s"
            assert client.server_info.version == "2.0"
            assert client.instructions == "Ask."
            await client.send_ping()
            listed = (await client.list_tools()).tools
            assert [each.name for each in listed] == ["add", "everything", "fail", "slow"]
            assert listed[0].annotations.title == "Sum"
            assert listed[0].annotations.read_only_hint is True
            assert listed[0].meta == {"anthropic/alwaysLoad": True}

            result = await client.call_tool("add", {"a": 1})
            assert result.structured_content == {"sum": 2}
            assert not result.is_error
            kinds = [block.type for block in (await client.call_tool("everything", {})).content]
            assert kinds == ["text", "image", "audio", "resource_link", "resource"]
            for name, arguments in (("fail", {}), ("add", {"a": "x"}), ("add", None)):
                assert (await client.call_tool(name, arguments)).is_error
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("nobody", {})


@pytest.mark.requirement("R25", "R26")
async def test_resources_and_prompts_as_the_official_client_sees_them() -> None:
    with anyio.fail_after(10):
        async with official_client(make_mcp_dispatcher({"s": server()})) as client:
            assert [each.name for each in (await client.list_resources()).resources] == ["app"]
            assert [each.name for each in (await client.list_resource_templates()).resource_templates] == ["note"]
            contents = (await client.read_resource("note://todo")).contents
            assert contents[0].text == "# todo"
            assert contents[0].mime_type == "text/markdown"
            assert (await client.read_resource("config://app")).contents[0].text == '{"debug":true}'
            with pytest.raises(MCPError, match="not found"):
                await client.read_resource("none://x")

            assert [each.name for each in (await client.list_prompts()).prompts] == ["ask"]
            messages = (await client.get_prompt("ask", {"topic": "it"})).messages
            assert messages[0].content.text == "What is it?"
            assert messages[1].content.type == "image"
            with pytest.raises(MCPError, match="topic"):
                await client.get_prompt("ask", {})


@pytest.mark.requirement("R24")
async def test_progress_changes_and_cancellation_reach_the_other_side() -> None:
    received: list[tuple[float, float | None, str | None]] = []
    changed = anyio.Event()
    started = anyio.Event()
    ended = anyio.Event()

    @tool
    async def wait() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total, message))

    async def incoming(message: Any) -> None:
        if isinstance(message, mcp.types.ToolListChangedNotification):
            changed.set()

    own = server()
    with anyio.fail_after(10):
        async with official_client(make_mcp_dispatcher({"s": own}), message_handler=incoming) as client:
            result = await client.call_tool("slow", {}, progress_callback=progressed)
            assert result.content[0].text == "done"
            own.add_tool(wait)
            await changed.wait()
            with anyio.CancelScope() as giving_up:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "wait", {})
                    await started.wait()
                    giving_up.cancel()
            await ended.wait()
            assert (await client.call_tool("add", {"a": 1})).structured_content == {"sum": 2}
    assert sorted(received) == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
