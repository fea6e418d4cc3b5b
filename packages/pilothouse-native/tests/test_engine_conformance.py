"""What every agent does, over the native engine."""

from __future__ import annotations

from typing import Any

from native_fixtures import settings

from pilothouse_testing import ScriptedModel
from pilothouse_testing.conformance import AgentSuite


class TestNativeAgent(AgentSuite):
    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return settings(model)
