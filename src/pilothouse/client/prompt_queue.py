"""The prompts of one query, one after the other: the next when the one before is answered for good.

Owns their order where an answer of the CLI is not the end of it, because this process runs the calls. Must not know
what an answer means.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence

from pilothouse.driver import Outgoing, Prompts


class PromptQueue:
    """Holds back all prompts but the first.

    Args:
        prompts: as the driver would get them.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._given: Iterator[Outgoing] | None = None
        self._coming: AsyncGenerator[Outgoing, None] | None = None
        if isinstance(prompts, Sequence):
            self._given = iter(prompts[1:])
            self.first: Prompts = prompts[:1]
        else:
            self._coming = prompts
            self.first = self._only_first(prompts)

    async def next(self) -> Outgoing | None:
        """The next prompt, once it is there; None: that was the last."""
        if self._coming is not None:
            return await anext(self._coming, None)
        return None if self._given is None else next(self._given, None)

    @staticmethod
    async def _only_first(prompts: AsyncGenerator[Outgoing, None]) -> AsyncGenerator[Outgoing, None]:
        prompt = await anext(prompts, None)
        if prompt is not None:
            yield prompt
