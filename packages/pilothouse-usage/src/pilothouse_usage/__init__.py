"""What an agent spent, by sub-agent, tool and turn, and why its prompt cache was lost."""
