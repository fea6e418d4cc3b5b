"""What an agent spent, by sub-agent, tool and turn, and why its prompt cache was lost.

`breakdown.py` has the tables, `ledger.py` how cost is divided among messages, `task_budget.py` limits for sub-agents;
`cache_doctor.py` says why a cache was lost, `cache_relay.py` stands between the CLI and the API for it.
"""

from pilothouse_usage.breakdown import AgentRow as AgentRow
from pilothouse_usage.breakdown import Breakdown as Breakdown
from pilothouse_usage.breakdown import ToolRow as ToolRow
from pilothouse_usage.breakdown import TurnRow as TurnRow
from pilothouse_usage.breakdown import UsageRow as UsageRow
from pilothouse_usage.breakdown import breakdown as breakdown
from pilothouse_usage.breakdown import session_breakdown as session_breakdown
from pilothouse_usage.cache_doctor import CacheDoctor as CacheDoctor
from pilothouse_usage.cache_doctor import CacheLoss as CacheLoss
from pilothouse_usage.cache_doctor import CacheLossCause as CacheLossCause
from pilothouse_usage.task_budget import TaskBudget as TaskBudget
