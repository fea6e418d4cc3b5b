"""The only async driver: it moves bytes between a transport and the protocol and runs handlers and timeouts.

It knows nothing of options, hooks, permissions or tools: the client passes those in as handlers and middleware.
Start at `turn.QueryTurn`, then `query_run.QueryRun` and `connection.ControlChannel`.
"""

from pilothouse.driver.child_run import ChildRun as ChildRun
from pilothouse.driver.extensions import HandlerSet as HandlerSet
from pilothouse.driver.extensions import NextPrompt as NextPrompt
from pilothouse.driver.extensions import QueryMiddleware as QueryMiddleware
from pilothouse.driver.extensions import RequestControl as RequestControl
from pilothouse.driver.extensions import SendControl as SendControl
from pilothouse.driver.failures import QueryLimits as QueryLimits
from pilothouse.driver.incoming_requests import RequestHandler as RequestHandler
from pilothouse.driver.pending_work import PromptMessage as PromptMessage
from pilothouse.driver.pending_work import Prompts as Prompts
from pilothouse.driver.query_run import QueryRun as QueryRun
from pilothouse.driver.tasks import spawn as spawn
from pilothouse.transports.concurrency import call_in_loop as call_in_loop
from pilothouse.transports.concurrency import make_loop_caller as make_loop_caller
from pilothouse.transports.concurrency import running_loop as running_loop
