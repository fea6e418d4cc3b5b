"""Bridges: the ways on which a call of the model reaches a tool of this process without the CLI running it.

Owns the calls that are run here: in which order hooks, permissions and the tool come, and how the model gets the
results. Must not know the driver or the client.
"""

from pilothouse.tools.bridges.deferred import DeferredBridge as DeferredBridge
from pilothouse.tools.bridges.host import ToolHost as ToolHost
from pilothouse.tools.bridges.rules import Rules as Rules
from pilothouse.tools.bridges.steps import Step as Step
from pilothouse.tools.bridges.steps import Steps as Steps
from pilothouse.tools.bridges.text import XmlBridge as XmlBridge
