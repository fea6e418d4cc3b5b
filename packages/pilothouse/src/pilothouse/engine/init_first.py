"""`InitFirst`: puts the init message of a query before what the CLI reports earlier."""

from __future__ import annotations

from pilothouse.messages import ConversationResetMessage, InitMessage, Message, SystemMessage

HELD_BYTES = 1024 * 1024  # of messages before the turn begins, that are held back until the init message


class InitFirst:
    """Holds back what comes before the init message: session hooks, and a cleared conversation.

    Attributes:
        is_over: whether the init message has come, or will not come first; then call it no more.
        held_bytes: how much it was given so far, in bytes on the wire.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.held_bytes = 0
        self._held: list[Message] = []

    def order(self, batch: list[Message], size: int) -> list[Message]:
        """Return what the consumer gets now, in order.

        Args:
            batch: the messages that came.
            size: their size on the wire, in bytes.
        """
        self.held_bytes += size
        for at, message in enumerate(batch):
            if isinstance(message, InitMessage):
                return [message, *self.release(), *batch[at + 1 :]]
            if not isinstance(message, SystemMessage | ConversationResetMessage):
                return [*self.release(), *batch[at:]]
            self._held.append(message)
        return self.release() if self.held_bytes > HELD_BYTES else []

    def release(self) -> list[Message]:
        """Return what is held back; nothing will be from now on."""
        held, self._held, self.is_over = self._held, [], True
        return held
