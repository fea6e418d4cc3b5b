"""One side of a link, over all its connections: which message to send next, and what was received.

Owns the order and the timing of messages. Must not know connections or clocks: the caller passes in when a connection
exists and what time it is. The client and the host use the same class; they know what a message means to them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pilothouse.remote.ops import Ack, Data, Ended, EndInput, Op, Ping, Pong, Said
from pilothouse.remote.pulse import HEARTBEAT, Pulse
from pilothouse.remote.streams import ACK_BYTES, WINDOW, Inbound, Outbound

ACK_SECONDS: Final = 1.0
"""Seconds after which bytes that were handed on are acknowledged, however few."""
MAX_PONGS: Final = 16
"""Maximum pings that wait for their pong; beyond it the oldest get none."""


class Link:
    """Byte counts, windows and heartbeats of one side.

    ::

        link.connected(received, now)                   after `ready`; `received` is what the other side has
        while (said := link.say(now)) is not None: …    send it; afterwards sleep until `link.wake_at()` or news
        match link.hear(decode(message), now): …        `Data`: new bytes, each once; others are for the caller
        link.handed_on(count, now)                      acknowledged in time

    Args:
        outbound: what this side sends.
        inbound: what this side receives.
        heartbeat: seconds of silence after which the other side is pinged; 0: never.
    """

    def __init__(
        self, outbound: Outbound | None = None, inbound: Inbound | None = None, *, heartbeat: float = HEARTBEAT
    ) -> None:
        self.outbound = outbound or Outbound(window=WINDOW)
        self.inbound = inbound or Inbound(window=WINDOW)
        self.pulse = Pulse(heartbeat)
        self._pongs: deque[float] = deque(maxlen=MAX_PONGS)
        self._last: Op | None = None
        self._last_is_said = False
        self._news_since: float | None = None

    def connected(self, received: int, now: float) -> None:
        """Begin a connection; the other side has handed on everything below `received`.

        Raises:
            ProtocolError: the other side needs data that is not kept.
        """
        self.outbound.resume(received)
        # Data that was not handed on is sent again, so at most one window is ever kept.
        self.inbound.tell()
        self._news_since = None
        self._pongs.clear()
        self._last_is_said = False
        self.pulse.begin(now)

    def finish(self, last: EndInput | Ended) -> None:
        """Send this message after all appended data, on this connection and on each later one."""
        self._last, self._last_is_said = last, False

    @property
    def has_finished(self) -> bool:
        """Whether `finish` was called."""
        return self._last is not None

    def handed_on(self, count: int, now: float, keep_from: int | None = None) -> bool:
        """Record that the next `count` received bytes were handed on; see `Inbound.hand_on`.

        Returns:
            Whether `say` or `wake_at` changed because of it.
        """
        inbound = self.inbound
        inbound.hand_on(count, keep_from)
        if self._news_since is None and inbound.has_news:
            self._news_since = now
            return True
        return inbound.received - inbound.told >= ACK_BYTES

    def hear(self, said: Said, now: float) -> Said | None:
        """Process a message of the other side.

        Returns:
            `Data` with the new part; any other message that is not handled by the link itself; None for those that
            are.

        Raises:
            ProtocolError: the message is not allowed.
        """
        self.pulse.heard(now)
        match said:
            case Data(offset=offset, data=data):
                new = self.inbound.take(offset, data)
                return Data(self.inbound.position - len(new), new) if new else None
            case Ack(received=received):
                self.outbound.acknowledge(received)
                return said  # the host stores `keep_from`; the client may be waiting for window space
            case Ping(t=t):
                self._pongs.append(t)
                return None
            case Pong(t=t):
                self.pulse.answered(t, now)
                return None
            case EndInput(at=at) | Ended(at=at):
                self.inbound.end_at(at)
                return said
            case _:
                return said

    def say(self, now: float) -> Said | None:
        """Return the next message to send; None if there is none until news or `wake_at`."""
        if self._pongs:
            return Pong(self._pongs.popleft())
        if self._ack_is_due(now):
            return self.ack()
        if self.pulse.ask(now):
            return Ping(now)
        if (chunk := self.outbound.take()) is not None:
            return Data(*chunk)
        if self._last is not None and not self._last_is_said and not self.outbound.unsent:
            self._last_is_said = True
            return self._last
        return None

    def ack(self) -> Ack:
        """Return the acknowledgement, due or not, and count it as sent."""
        self._news_since = None
        return Ack(*self.inbound.tell())

    def _ack_is_due(self, now: float) -> bool:
        inbound = self.inbound
        if not inbound.has_news:
            return False
        if self._news_since is None:
            self._news_since = now
        return inbound.received - inbound.told >= ACK_BYTES or now >= self._news_since + ACK_SECONDS

    def wake_at(self) -> float:
        """Return when to call `say` even without news. `pulse.lost_at` is when the other side counts as lost."""
        since = self._news_since
        return min(self.pulse.ask_at, float("inf") if since is None else since + ACK_SECONDS)
