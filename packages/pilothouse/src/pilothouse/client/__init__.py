"""What users call: `Agent`, `Query`, `QueryResult`, `Session`, and the default agent.

It turns options into one run of the engine, with handlers and middleware, and knows nothing of bytes or processes.
Start at `agent.Agent.query`, then `queries.Query` and `launch.make_own_run`.
"""

from pilothouse.client.agent import Agent as Agent
from pilothouse.client.agent import configure as configure
from pilothouse.client.agent import default_agent as default_agent
from pilothouse.client.agent import query as query
from pilothouse.client.agent import session as session
from pilothouse.client.agent import set_default_agent as set_default_agent
from pilothouse.client.controls import EffectiveSettings as EffectiveSettings
from pilothouse.client.controls import ModelInfo as ModelInfo
from pilothouse.client.costs import CostTracker as CostTracker
from pilothouse.client.costs import SessionCost as SessionCost
from pilothouse.client.costs import TurnCost as TurnCost
from pilothouse.client.custom_tools import ToolBridge as ToolBridge
from pilothouse.client.event_reader import EventReader as EventReader
from pilothouse.client.event_reader import TextReader as TextReader
from pilothouse.client.launch import make_transport as make_transport
from pilothouse.client.logins import ClaudeLogin as ClaudeLogin
from pilothouse.client.logins import McpLogin as McpLogin
from pilothouse.client.middleware import Middleware as Middleware
from pilothouse.client.queries import LateWords as LateWords
from pilothouse.client.queries import Query as Query
from pilothouse.client.queries import Steering as Steering
from pilothouse.client.queries import SteerOutcome as SteerOutcome
from pilothouse.client.queries import SteerTime as SteerTime
from pilothouse.client.result import OutputT as OutputT
from pilothouse.client.result import QueryResult as QueryResult
from pilothouse.client.retry import retry_reason as retry_reason
from pilothouse.client.sessions import Session as Session
from pilothouse.client.structured_output import OutputSchema as OutputSchema
from pilothouse.engine import NextPrompt as NextPrompt
from pilothouse.engine import PromptMessage as PromptMessage
from pilothouse.engine import Prompts as Prompts
from pilothouse.media import document as document
from pilothouse.media import image as image
