"""Bridges: ways other than MCP to run the model's tool calls in this process.

Owns the calls that run here: the order of hooks, permissions and the tool, and how the model gets the results.
Must not know the driver or the client. Start reading in `executor`.
"""

from pilothouse.tools.bridges.deferred import DeferredBridge as DeferredBridge
from pilothouse.tools.bridges.executor import LoopStep as LoopStep
from pilothouse.tools.bridges.executor import ToolExecutor as ToolExecutor
from pilothouse.tools.bridges.executor import ToolLoop as ToolLoop
from pilothouse.tools.bridges.executor import ToolPermissionRules as ToolPermissionRules
from pilothouse.tools.bridges.xml import XmlBridge as XmlBridge
