"""Fixtures of the session tests."""

from session_cli import cli as cli
