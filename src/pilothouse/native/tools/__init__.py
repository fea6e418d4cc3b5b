"""The built-in tools of the native engine.

Owns which there are. What they do is in the files beside this one; whether a call may be made is decided by
`pilothouse.native.permissions`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pilothouse.native.tools.base import BuiltinTool as BuiltinTool
from pilothouse.native.tools.base import ToolOutcome as ToolOutcome
from pilothouse.native.tools.base import Workplace as Workplace
from pilothouse.native.tools.fetching import WEB_FETCH
from pilothouse.native.tools.finding import GLOB
from pilothouse.native.tools.reading import READ
from pilothouse.native.tools.searching import GREP
from pilothouse.native.tools.shells import BASH, TASK_STOP
from pilothouse.native.tools.todo import TODO_WRITE
from pilothouse.native.tools.writing import EDIT, WRITE

BUILTIN_TOOLS: Mapping[str, BuiltinTool] = MappingProxyType(
    {tool.name: tool for tool in (BASH, EDIT, GLOB, GREP, READ, TASK_STOP, TODO_WRITE, WEB_FETCH, WRITE)}
)
"""The built-in tools by name."""
