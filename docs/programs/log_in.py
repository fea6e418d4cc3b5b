"""Log in at an MCP server from a terminal, even over ssh, and use its tools.

python log_in.py https://mcp.example.com/mcp "What is open?"
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse.errors import LoginError


async def log_in(session: ph.Session, server: str) -> None:
    try:
        login = await session.mcp.authenticate(server)
    except LoginError as error:
        if error.code == "no_login":  # it is connected
            return
        raise
    print(f"Open this page and log in:\n{login.url}")
    while True:
        pasted = await asyncio.to_thread(input, "Then paste the address that your browser ends at: ")
        try:
            await login.complete(pasted)
        except LoginError as error:
            if error.code != "wrong_callback":
                raise
            print(error)
        else:
            return


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python log_in.py URL [PROMPT]")
    url, prompt = sys.argv[1], " ".join(sys.argv[2:]) or "Which tools do you have?"
    servers = {"theirs": ph.HttpServer(url=url)}
    async with ph.session(mcp_servers=servers, allowed_tools=["mcp__theirs"]) as session:
        await log_in(session, "theirs")
        print((await session.query(prompt)).raise_for_error().text)


asyncio.run(main())
