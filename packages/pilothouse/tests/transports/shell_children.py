"""Children that run a script of the shell."""

from __future__ import annotations

import os
from typing import Any

from pilothouse.options import Invocation
from pilothouse.transports.cli import CliTransport


def sh(script: str, **changes: Any) -> Invocation:
    return Invocation(cli="/bin/sh", argv=("-c", script), env={"PATH": os.environ["PATH"]}, **changes)


async def first_line(transport: CliTransport) -> str:
    data = b""
    while not data.endswith(b"\n"):
        data += await transport.receive()
    return data.decode().strip()
