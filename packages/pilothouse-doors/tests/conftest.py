"""Agents on the real CLI and a scripted model, for front ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from served_agents import ServedCli

from pilothouse_testing import ScriptedModel


@pytest.fixture
def served_cli(real_cli: str, scripted_model: ScriptedModel) -> Iterator[ServedCli]:
    if sys.platform != "linux":
        pytest.skip("finds the processes of a test in /proc")
    made = ServedCli(real_cli, scripted_model)
    yield made
    made.wait_gone()
