"""Programs that were written for other libraries, on pilothouse: `claude_agent_sdk` (see `docs/drop-in.md`).

A product on top: it uses the public names of pilothouse, and nothing else in pilothouse knows it.
"""
