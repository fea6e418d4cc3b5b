"""The async driver: one task that owns a connection, and what other tasks use to talk to it."""

from typing import TYPE_CHECKING

from pilothouse.driver.exchange import Exchange as Exchange
from pilothouse.driver.outgoing import Limits as Limits
from pilothouse.driver.outgoing import Outgoing as Outgoing
from pilothouse.driver.outgoing import Prompts as Prompts
from pilothouse.driver.questions import Desk as Desk
from pilothouse.driver.tasks import caller_into_loop as caller_into_loop
from pilothouse.driver.tasks import running_loop as running_loop
from pilothouse.driver.tasks import spawn as spawn
from pilothouse.on_demand import on_demand as on_demand

if TYPE_CHECKING:
    from pilothouse.driver.continuation import Continuation as Continuation
    from pilothouse.driver.continuation import Next as Next
    from pilothouse.driver.host import Ask as Ask
    from pilothouse.driver.host import Host as Host
    from pilothouse.driver.host import Tell as Tell

_ON_DEMAND = {"Ask": "host", "Continuation": "continuation", "Host": "host", "Next": "continuation", "Tell": "host"}

# Most queries have nothing to offer, and are over with their result.
__getattr__, __dir__ = on_demand(__name__, _ON_DEMAND)
