"""Fixtures of the session tests."""

import pytest
from session_cli import cli as cli


@pytest.fixture(params=["alone", "session"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whether a query has a child for itself, or is one of a session."""
    return request.param
