"""`Transport`: what a program implements to reach the CLI in its own way."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any


class Transport(ABC):
    """A connection to the CLI that carries dictionaries; one instance serves one connection."""

    @abstractmethod
    async def connect(self) -> None:
        """Connect, or start the CLI."""

    @abstractmethod
    async def write(self, data: str) -> None:
        """Send one line of JSON, with its line end."""

    @abstractmethod
    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over what the CLI sends, until its output ends."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the connection can take data."""

    @abstractmethod
    async def end_input(self) -> None:
        """Tell the CLI that nothing more comes."""


__all__ = ["Transport"]
