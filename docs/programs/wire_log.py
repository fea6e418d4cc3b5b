"""A transport around another one, which logs both directions of the wire.

python wire_log.py wire.log "What is the capital of France?"
"""

import asyncio
import sys
from pathlib import Path
from typing import BinaryIO

import pilothouse as ph
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, Transport, TransportWrapper


class WireLog(TransportWrapper):
    """Writes lines that start with `> ` (sent) or `< ` (received)."""

    def __init__(self, path: Path, inner: Transport | None = None) -> None:
        super().__init__(inner or CliTransport())
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = {b"> ": b"", b"< ": b""}

    async def start(self, invocation: Invocation) -> None:
        file = self._path.open("ab")
        try:
            await self.inner.start(invocation)
        except BaseException:
            file.close()  # when `start` raises, nothing is left behind
            raise
        self._file = file

    async def send(self, data: bytes) -> None:
        await self.inner.send(data)
        self._note(b"> ", data)

    async def receive(self) -> bytes:
        data = await self.inner.receive()
        self._note(b"< ", data)
        return data

    async def close(self) -> None:
        await self.inner.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _note(self, mark: bytes, data: bytes) -> None:
        if self._file is not None:
            *lines, self._rest[mark] = (self._rest[mark] + data).split(b"\n")
            self._file.writelines(mark + line + b"\n" for line in lines)


async def main(path: Path, prompt: str) -> None:
    # A callable makes a new transport for each query; a transport object would serve one query only.
    result = await ph.query(prompt, transport=lambda: WireLog(path), tools=[])
    print(result.text)


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit("usage: python wire_log.py LOG PROMPT")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
