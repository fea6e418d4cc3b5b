"""Tests for session stores that programs bring."""

from pilothouse.compat.claude_agent_sdk.testing.session_store_conformance import (
    run_session_store_conformance as run_session_store_conformance,
)
