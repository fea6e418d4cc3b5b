"""Run Claude Code on another machine, over ssh.

python over_ssh.py user@host /srv/project "What does this project do?"

Needs a login by key on that machine (`ssh user@host true` asks for nothing), and `claude` installed there, with its own
key or login: the environment of this process stays here. Nothing is left over there when this program ends, however it
ends.
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse_remote import over_ssh


async def main(host: str, directory: str, prompt: str, cli: str = "claude") -> None:
    result = await ph.query(prompt, transport=over_ssh(host, directory=directory, cli=cli), tools=[])
    result.raise_for_error()
    print(result.text)


if not sys.argv[3:]:
    sys.exit("usage: python over_ssh.py HOST DIRECTORY PROMPT")
asyncio.run(main(*sys.argv[1:]))
