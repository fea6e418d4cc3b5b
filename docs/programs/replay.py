"""Record what the CLI says, and play it again without any CLI.

python replay.py record run.ndjson "What is the capital of France?"
python replay.py play run.ndjson
"""

import asyncio
import sys
from pathlib import Path

import pilothouse as ph
from pilothouse.testing import frames
from pilothouse.transports import MemoryPeer, MemoryTransport


async def record(path: Path, prompt: str) -> None:
    with path.open("wb") as file:
        async for message in ph.query(prompt, tools=[]):
            file.write(message.raw_line.strip() + b"\n")
            print(message.type)


async def play(path: Path) -> None:
    async def peer(conn: MemoryPeer) -> None:
        while frame := await conn.read_frame():
            match frame["type"]:
                case "control_request":  # the handshake
                    await conn.write(frames.control_response(frame["request_id"], frames.server_info()))
                case "user":
                    await conn.write(path.read_bytes())
                case _:
                    pass

    result = await ph.query("anything", transport=MemoryTransport(peer))
    print(result.text)


if sys.argv[1] == "record":
    asyncio.run(record(Path(sys.argv[2]), sys.argv[3]))
else:
    asyncio.run(play(Path(sys.argv[2])))
