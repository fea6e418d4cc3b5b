"""The modules behind the names of `claude_agent_sdk`, where programs and tests patch or import them."""
