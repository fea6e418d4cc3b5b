"""Stands for `claude_agent_sdk` where this directory is first on the path: importing it loads the package."""

from pilothouse_compat.alias import install

install()
