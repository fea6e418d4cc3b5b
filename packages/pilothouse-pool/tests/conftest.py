"""Fixtures of the tests of pools."""

from session_cli import cli as cli
