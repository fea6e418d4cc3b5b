"""The breakdown of runs of the real CLI adds up to what the CLI has counted, however much the messages show."""

from __future__ import annotations

from math import fsum
from typing import Any

import anyio
import pytest
from delegations import LAST_USAGE, SUB_USAGE, delegate

import pilothouse as ph
from pilothouse.messages import Message, ModelUsage
from pilothouse_testing import ScriptedModel
from pilothouse_usage import Breakdown, breakdown, session_breakdown
from pilothouse_usage.breakdown import NOT_SHOWN

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]
MICRO = 1e-6


async def test_x(agent, scripted_model):
    for bg in (False, True):
      delegate(scripted_model, in_background=bg)
      for kw in ({}, {"partial_messages": True}, {"forward_subagent_text": True}):
        r = await agent.query("delegate", until="idle", **kw)
        b = breakdown(r)
        print(bg, kw, r.cost_usd, b.cost_usd, r.model_usage)
        for by in ("agent","turn","tool","server","model"):
            print(b.table(by)); print()
        print(session_breakdown(r.session_id, config_dir=scripted_model.home/".claude"))
        print(session_breakdown(r.session_id, config_dir=scripted_model.home/".claude").table("turn"))
