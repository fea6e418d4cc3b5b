"""What users touch: `Agent`, `Query`, `QueryResult`, `Session`, and the default agent."""

from typing import TYPE_CHECKING

from pilothouse.client.agent import Agent as Agent
from pilothouse.client.agent import configure as configure
from pilothouse.client.agent import default_agent as default_agent
from pilothouse.client.agent import default_in_context as default_in_context
from pilothouse.client.agent import defaults_kept as defaults_kept
from pilothouse.client.agent import query as query
from pilothouse.client.agent import session as session
from pilothouse.client.agent import set_default_agent as set_default_agent
from pilothouse.client.config_file import trust as trust
from pilothouse.client.queries import Query as Query
from pilothouse.client.result import QueryResult as QueryResult
from pilothouse.on_demand import on_demand as on_demand

if TYPE_CHECKING:
    from pilothouse.client.asks import PermissionAsked as PermissionAsked
    from pilothouse.client.asks import PermissionSettled as PermissionSettled
    from pilothouse.client.attachments import document as document
    from pilothouse.client.attachments import image as image
    from pilothouse.client.events import AnswerEvent as AnswerEvent
    from pilothouse.client.events import AnswerFinished as AnswerFinished
    from pilothouse.client.events import AnswerStarted as AnswerStarted
    from pilothouse.client.events import BudgetReached as BudgetReached
    from pilothouse.client.events import LineSkipped as LineSkipped
    from pilothouse.client.events import OutputRejected as OutputRejected
    from pilothouse.client.events import Retrying as Retrying
    from pilothouse.client.events import RetryScheduled as RetryScheduled
    from pilothouse.client.events import Stalled as Stalled
    from pilothouse.client.events import TextAdded as TextAdded
    from pilothouse.client.events import TextWithdrawn as TextWithdrawn
    from pilothouse.client.events import ThinkingAdded as ThinkingAdded
    from pilothouse.client.events import ToolFinished as ToolFinished
    from pilothouse.client.events import ToolStarted as ToolStarted
    from pilothouse.client.events import WaitingForLimit as WaitingForLimit
    from pilothouse.client.sessions import Session as Session

_MODULES = {
    "asks": "PermissionAsked PermissionSettled",
    "attachments": "document image",
    "events": "AnswerEvent AnswerFinished AnswerStarted BudgetReached LineSkipped OutputRejected Retrying "
    "RetryScheduled Stalled TextAdded TextWithdrawn ThinkingAdded ToolFinished ToolStarted WaitingForLimit",
    "sessions": "Session",
}
_ON_DEMAND = {name: module for module, names in _MODULES.items() for name in names.split()}

# One query needs none of them.
__getattr__, __dir__ = on_demand(__name__, _ON_DEMAND)
