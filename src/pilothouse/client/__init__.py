"""What users touch: `Agent`, `Query`, `QueryResult`, `Session`, and the default agent."""

from typing import TYPE_CHECKING, Any

from pilothouse.client.agent import Agent as Agent
from pilothouse.client.agent import configure as configure
from pilothouse.client.agent import default_agent as default_agent
from pilothouse.client.agent import defaults_kept as defaults_kept
from pilothouse.client.agent import query as query
from pilothouse.client.agent import session as session
from pilothouse.client.agent import set_default_agent as set_default_agent
from pilothouse.client.attachments import document as document
from pilothouse.client.attachments import image as image
from pilothouse.client.events import AnswerEvent as AnswerEvent
from pilothouse.client.events import AnswerFinished as AnswerFinished
from pilothouse.client.events import AnswerStarted as AnswerStarted
from pilothouse.client.events import BudgetReached as BudgetReached
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
from pilothouse.client.queries import Query as Query
from pilothouse.client.result import QueryResult as QueryResult

if TYPE_CHECKING:
    from pilothouse.client.sessions import Session as Session


def __getattr__(name: str) -> Any:
    if name != "Session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pilothouse.client.sessions import Session  # one query needs none

    return Session
