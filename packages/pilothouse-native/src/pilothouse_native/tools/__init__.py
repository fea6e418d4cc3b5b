"""The built-in tools of the native engine, by name.

Owns reading, changing and searching files, commands, and web pages. Must not know permissions:
`pilothouse_native.permissions` decides whether a call may run. Start reading in `base`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pilothouse_native.tools.base import BuiltinTool as BuiltinTool
from pilothouse_native.tools.base import ToolOutput as ToolOutput
from pilothouse_native.tools.base import Workplace as Workplace
from pilothouse_native.tools.bash_tool import BASH, TASK_STOP
from pilothouse_native.tools.file_tools import EDIT, READ, WRITE
from pilothouse_native.tools.search_tools import GLOB, GREP
from pilothouse_native.tools.session_tools import TODO_WRITE
from pilothouse_native.tools.web_fetch import WEB_FETCH

BUILTIN_TOOLS: Mapping[str, BuiltinTool] = MappingProxyType(
    {tool.name: tool for tool in (BASH, EDIT, GLOB, GREP, READ, TASK_STOP, TODO_WRITE, WEB_FETCH, WRITE)}
)
"""The built-in tools by name."""
