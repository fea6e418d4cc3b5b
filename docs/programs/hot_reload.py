"""An application that its new version replaces in the middle of a conversation.

pilothouse serve --token-file token                  # once: the host owns Claude Code
PILOTHOUSE_HOST_TOKEN=$(cat token) python hot_reload.py ws://127.0.0.1:8750

Ask something, change `allow` in this file, type "reload", ask on: the new function answers, also for a permission that
the old process was asked for and never answered.
"""

import asyncio
import os
import sys

import pilothouse as ph
from pilothouse_remote import on_host

VERSION = os.environ.get("APP_VERSION", "1")


def allow(request: ph.PermissionRequest) -> ph.Allow:
    print(f"version {VERSION} allows {request.tool_name}", flush=True)
    return ph.Allow()


async def main(url: str, found_as: str | None = None) -> None:
    token = os.environ.get("PILOTHOUSE_HOST_TOKEN")
    agent = ph.Agent(can_use_tool=allow, tools=["Read", "Bash"])
    async with agent.session(transport=on_host(url, token=token, session=found_as)) as session:
        print(f"version {VERSION} is there", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if line == "reload":
                found_as = await session.detach()  # the session goes on without us
                os.execv(sys.executable, [sys.executable, __file__, url, found_as])
            print((await session.query(line)).text, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
