"""What an agent spent, by sub-agent, tool and turn, and why its prompt cache was lost.

`breakdown.py` has the tables, `ledger.py` how cost is divided among messages, `task_budget.py` limits for sub-agents;
`cache_doctor.py` says why a cache was lost, `cache_relay.py` stands between the CLI and the API for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.support import make_lazy_exports as make_lazy_exports
from pilothouse_usage.breakdown import AgentRow as AgentRow
from pilothouse_usage.breakdown import Breakdown as Breakdown
from pilothouse_usage.breakdown import ToolRow as ToolRow
from pilothouse_usage.breakdown import TurnRow as TurnRow
from pilothouse_usage.breakdown import UsageRow as UsageRow
from pilothouse_usage.breakdown import breakdown as breakdown
from pilothouse_usage.breakdown import session_breakdown as session_breakdown
from pilothouse_usage.task_budget import TaskBudget as TaskBudget

if TYPE_CHECKING:
    from pilothouse_usage.cache_doctor import CacheDoctor as CacheDoctor
    from pilothouse_usage.cache_doctor import CacheLoss as CacheLoss
    from pilothouse_usage.cache_doctor import CacheLossCause as CacheLossCause

# It needs an HTTP server and client, which take a tenth of a second to load.
__getattr__, __dir__ = make_lazy_exports(__name__, {"cache_doctor": "CacheDoctor CacheLoss CacheLossCause"})
