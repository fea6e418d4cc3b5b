"""A chat server: each connection is a conversation of its own; one line in, one answer out.

python chat_server.py 8000        and then, in another terminal: nc localhost 8000
"""

import asyncio
import sys

import pilothouse as ph

agent = ph.Agent(tools=[], max_turns=1, timeout=120)


async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with agent.session() as session:
            while line := await reader.readline():
                try:
                    async for piece in session.query(line.decode(errors="replace")).text_stream():
                        writer.write(piece.encode())
                        await writer.drain()  # a slow reader slows down its own session only
                except ph.ResultError as error:  # this answer failed; the conversation goes on
                    writer.write(f"sorry: {error}".encode())
                writer.write(b"\n")
    except ph.PilothouseError as error:
        writer.write(f"sorry: {error}\n".encode())
    except ConnectionError:
        return  # it hung up; the answer under way was stopped, and the child is gone
    finally:
        writer.close()


async def main() -> None:
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    server = await asyncio.start_server(chat, "127.0.0.1", port)
    print(f"listening on port {server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("bye")
