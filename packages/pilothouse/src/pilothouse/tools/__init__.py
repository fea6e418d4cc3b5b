"""Tools in this process: Python functions that the model calls, and the MCP servers that offer them.

Owns `@tool`, input schemas, the in-process MCP servers and the dispatcher for `mcp_message` requests. Must not know
the engine, the client, hooks or permissions. Start reading in `tool`.
"""

from pilothouse.tools.calls import ToolContext as ToolContext
from pilothouse.tools.calls import ToolError as ToolError
from pilothouse.tools.calls import ToolExecutionError as ToolExecutionError
from pilothouse.tools.calls import ToolFailure as ToolFailure
from pilothouse.tools.calls import ToolInputError as ToolInputError
from pilothouse.tools.calls import ToolResultError as ToolResultError
from pilothouse.tools.calls import ToolTimeout as ToolTimeout
from pilothouse.tools.content import ToolContent as ToolContent
from pilothouse.tools.content import ToolResult as ToolResult
from pilothouse.tools.content import audio_content as audio_content
from pilothouse.tools.content import embedded_resource as embedded_resource
from pilothouse.tools.content import image_content as image_content
from pilothouse.tools.content import resource_link as resource_link
from pilothouse.tools.content import text_content as text_content
from pilothouse.tools.content import to_model_blocks as to_model_blocks
from pilothouse.tools.content import to_model_content as to_model_content
from pilothouse.tools.mcp_dispatcher import MountedServer as MountedServer
from pilothouse.tools.mcp_dispatcher import make_mcp_dispatcher as make_mcp_dispatcher
from pilothouse.tools.mcp_dispatcher import mount as mount
from pilothouse.tools.server import Prompt as Prompt
from pilothouse.tools.server import Resource as Resource
from pilothouse.tools.server import SdkServer as SdkServer
from pilothouse.tools.server import prompt as prompt
from pilothouse.tools.server import resource as resource
from pilothouse.tools.server import sdk_server as sdk_server
from pilothouse.tools.tool import Tool as Tool
from pilothouse.tools.tool import ToolAnnotations as ToolAnnotations
from pilothouse.tools.tool import as_tool as as_tool
from pilothouse.tools.tool import create_tool as create_tool
from pilothouse.tools.tool import tool as tool
