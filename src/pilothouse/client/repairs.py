"""What follows a result whose output does not fit: the prompt that asks for it again.

Owns that prompt and when it is due. Knows nothing of the query, so that one that is dropped can end. Loaded only by
queries that ask for output.
"""

from __future__ import annotations

from typing import cast

from pilothouse.client.output import TypedOutput
from pilothouse.client.prompt import prepare
from pilothouse.driver import Next, Outgoing
from pilothouse.messages import Message, ResultMessage


class Repairs:
    """Asks again for what does not fit; a continuation.

    Without a call of its output tool the CLI still reports success (2.1.330), so the check is ours.

    Args:
        output: judges the results.
    """

    def __init__(self, output: TypedOutput) -> None:
        self._output = output

    def read(self, batch: list[Message]) -> list[Message]:
        """All of it: the consumer sees what was rejected, too."""
        return batch

    async def go_on(self, result: ResultMessage) -> Next:
        """The prompt that asks for the output again, if it does not fit and asking may help."""
        words = self._output.repair(result)
        if words is None:
            return Next()
        # Verbatim: it quotes the model, and an `@path` in that must not be read.
        [prompt] = cast("tuple[Outgoing]", prepare(words, verbatim=True))
        return Next(prompt)
