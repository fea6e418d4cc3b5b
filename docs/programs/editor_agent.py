"""An agent of your own for Zed, JetBrains and Neovim: Claude Code with a tool of yours. The editor starts it.

python editor_agent.py        as the command of an agent in the settings of the editor
"""

import asyncio

import pilothouse as ph
from pilothouse_doors.acp.agent import serve_editor


@ph.tool
def due_date(project: str) -> str:
    """Tell when a project is due."""
    return f"{project} is due on Friday"


agent = ph.Agent(custom_tools=[due_date], allowed_tools=["mcp__tools__due_date"])

if __name__ == "__main__":
    asyncio.run(serve_editor(agent))  # until the editor closes the connection
