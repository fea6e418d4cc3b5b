"""Tools in this process: Python functions that the model calls, and the MCP servers that offer them.

Owns `@tool`, schemas, the answers of in-process MCP servers, and the desk for `mcp_message`. Must not know the driver,
the client, hooks or permissions.
"""

from pilothouse.tools.annotations import ToolAnnotations as ToolAnnotations
from pilothouse.tools.content import ToolContent as ToolContent
from pilothouse.tools.content import ToolResult as ToolResult
from pilothouse.tools.content import audio_content as audio_content
from pilothouse.tools.content import embedded_resource as embedded_resource
from pilothouse.tools.content import image_content as image_content
from pilothouse.tools.content import resource_link as resource_link
from pilothouse.tools.content import text_content as text_content
from pilothouse.tools.context import ToolContext as ToolContext
from pilothouse.tools.desk import ToolDesk as ToolDesk
from pilothouse.tools.desk import tool_desk as tool_desk
from pilothouse.tools.failures import ToolError as ToolError
from pilothouse.tools.failures import ToolExecutionError as ToolExecutionError
from pilothouse.tools.failures import ToolFailure as ToolFailure
from pilothouse.tools.failures import ToolInputError as ToolInputError
from pilothouse.tools.failures import ToolResultError as ToolResultError
from pilothouse.tools.failures import ToolTimeout as ToolTimeout
from pilothouse.tools.mounted import MountedServer as MountedServer
from pilothouse.tools.mounted import mount as mount
from pilothouse.tools.offers import Prompt as Prompt
from pilothouse.tools.offers import Resource as Resource
from pilothouse.tools.offers import prompt as prompt
from pilothouse.tools.offers import resource as resource
from pilothouse.tools.server import SdkServer as SdkServer
from pilothouse.tools.server import sdk_server as sdk_server
from pilothouse.tools.tool import Tool as Tool
from pilothouse.tools.tool import as_tool as as_tool
from pilothouse.tools.tool import create_tool as create_tool
from pilothouse.tools.tool import tool as tool
