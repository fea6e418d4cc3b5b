"""The version of `claude_agent_sdk` whose names and behaviour are here."""

__version__ = "0.2.189"
