"""What users call: `Agent`, `Query`, `QueryResult`, `Session`, and the default agent.

It turns options into one run of the driver, with handlers and middleware, and knows nothing of bytes or processes.
Start at `agent.Agent.query`, then `query_plan.QueryPlan` and `queries.Query`.
"""

from typing import TYPE_CHECKING

from pilothouse.client.agent import Agent as Agent
from pilothouse.client.agent import configure as configure
from pilothouse.client.agent import default_agent as default_agent
from pilothouse.client.agent import query as query
from pilothouse.client.agent import restore_defaults as restore_defaults
from pilothouse.client.agent import session as session
from pilothouse.client.agent import set_default_agent as set_default_agent
from pilothouse.client.agent import use_default_agent as use_default_agent
from pilothouse.client.config_file import trust as trust
from pilothouse.client.queries import Query as Query
from pilothouse.client.result import QueryResult as QueryResult
from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports

if TYPE_CHECKING:
    from pilothouse.client.attachments import document as document
    from pilothouse.client.attachments import image as image
    from pilothouse.client.events import ApiRetry as ApiRetry
    from pilothouse.client.events import BudgetReached as BudgetReached
    from pilothouse.client.events import Finished as Finished
    from pilothouse.client.events import LineSkipped as LineSkipped
    from pilothouse.client.events import OutputRejected as OutputRejected
    from pilothouse.client.events import PermissionAsked as PermissionAsked
    from pilothouse.client.events import PermissionSettled as PermissionSettled
    from pilothouse.client.events import QueryEvent as QueryEvent
    from pilothouse.client.events import RetryScheduled as RetryScheduled
    from pilothouse.client.events import Stalled as Stalled
    from pilothouse.client.events import Started as Started
    from pilothouse.client.events import TextDelta as TextDelta
    from pilothouse.client.events import TextRetracted as TextRetracted
    from pilothouse.client.events import ThinkingDelta as ThinkingDelta
    from pilothouse.client.events import ToolCallFinished as ToolCallFinished
    from pilothouse.client.events import ToolCallStarted as ToolCallStarted
    from pilothouse.client.events import WaitingForLimit as WaitingForLimit
    from pilothouse.client.sessions import Session as Session


# Loaded lazily: a plain query needs none of them.
__getattr__, __dir__ = make_lazy_exports(__name__)
