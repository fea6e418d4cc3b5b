"""The only async engine: it moves bytes between a transport and the protocol and runs handlers and timeouts.

It knows nothing of options, hooks, permissions or tools: the client passes those in as handlers and middleware.
Start at `turn.QueryTurn`, then `run.QueryRun` and `channel.ControlChannel`.
"""

from pilothouse.engine.child import ChildRun as ChildRun
from pilothouse.engine.extensions import HandlerSet as HandlerSet
from pilothouse.engine.extensions import NextPrompt as NextPrompt
from pilothouse.engine.extensions import QueryMiddleware as QueryMiddleware
from pilothouse.engine.extensions import RequestControl as RequestControl
from pilothouse.engine.extensions import SendControl as SendControl
from pilothouse.engine.incoming_requests import RequestHandler as RequestHandler
from pilothouse.engine.limits import QueryLimits as QueryLimits
from pilothouse.engine.pending_work import PromptMessage as PromptMessage
from pilothouse.engine.pending_work import Prompts as Prompts
from pilothouse.engine.run import QueryPlace as QueryPlace
from pilothouse.engine.run import QueryRun as QueryRun
from pilothouse.engine.tasks import spawn as spawn
from pilothouse.transports.concurrency import call_in_loop as call_in_loop
from pilothouse.transports.concurrency import make_loop_caller as make_loop_caller
from pilothouse.transports.concurrency import running_loop as running_loop
