"""Stands for `claude_agent_sdk` where this directory is first on the path: the modules are those of pilothouse."""

from pilothouse.compat.alias import install

install()
