"""Fixtures of the session tests."""

from session_world import cli as cli
