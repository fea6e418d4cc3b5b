"""The CLI elsewhere: on a host, in a container, in a pod, over ssh.

`command` runs the CLI behind a command. `transport` reaches a host: `link` is what both sides of it share; one
WebSocket carries one session. `client` is for sessions that the host drives, over REST.

`link` and `messages` own numbering, acknowledgement, resending, duplicates, resumption, back-pressure and heartbeats
as a pure state machine. They must not know WebSockets, time (the caller passes it in), journals, or what the bytes
mean, except where lines end, and which lines are control frames when a client takes over. Start with `link`.

Subprotocol `pilothouse.v1`; header `Authorization: Bearer …`. Text messages are JSON objects with an `op`,
binary messages are data: 8 bytes big-endian offset, then the bytes. A message is at most `MAX_MESSAGE_BYTES` bytes.

**Numbers.** Each direction is a stream of bytes: the client sends the child's input, the host sends its output. A
chunk carries the offset of its first byte, so that resent data may be cut differently and duplicates are recognized.
`received` always means: what this side has without a gap *and has handed on* (the client to the application, the host
to the child). A side sends at most `WINDOW_BYTES` bytes beyond the other side's `received`; more breaks the protocol.

**Life.**

1. The client sends `start` or `attach`; the host responds with `ready` or `refused`, and sends nothing before it. A
   client whose connection broke before it got `ready` repeats `start` under the same `client`: the host gives it the
   session that the first `start` made.
2. After a break the same `client` attaches with `received`, and drops what it has beyond that and has not handed on;
   the host continues at exactly that byte of the output. `ready.received` is where the client continues with the
   input; the host may hold more than that, and drops what comes again. If the old connection still exists, it is
   replaced (`error` with the code "replaced").
3. Another client attaches with `received: null` (and with `take_over` if a client is attached). The host begins at
   `keep_from` of the last `ack` (0 before any): the beginning of a line that the previous client may not have handed
   on completely. So output may be pruned up to `keep_from`, not up to `received`. `ready.end` is the amount of output
   at this moment: control frames in lines that begin before it were for the previous client (`ReplayFilter` removes
   them). The new client learns which requests are still open by sending `initialize` again: the CLI responds with
   them.
4. The host gives the child whole lines only (`CompleteLines`; the rest of them at `end_input`). It acknowledges input
   that was handed on or is part of an incomplete last line. When another client takes over, the incomplete line is
   dropped, and `ready.received` is the offset of its first byte: half a line would end the CLI.
5. `end_input` says where the input ends, `ended` where the output ends, and how; each is repeated after a break.
   `ended` is repeated to every client that attaches until a client sends `close`. A child that closes its output and
   keeps running is `ended` as well, with a `detail`.
6. `close` ends the child and forgets the session; the host closes the WebSocket (1000) when the child is gone.
   `detach` leaves the session running; the host closes the WebSocket (1000) when it has recorded that.

A side that has received nothing for one interval sends `ping`; the other sends `pong` with the same `t`. After three
intervals without data the connection is dropped, and the client makes another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.support import make_lazy_exports as make_lazy_exports

if TYPE_CHECKING:
    from pilothouse_remote.client import HostClient as HostClient
    from pilothouse_remote.client import HostedAsk as HostedAsk
    from pilothouse_remote.client import HostedLogin as HostedLogin
    from pilothouse_remote.client import HostedLoginState as HostedLoginState
    from pilothouse_remote.client import HostedMcp as HostedMcp
    from pilothouse_remote.client import HostedMcpServer as HostedMcpServer
    from pilothouse_remote.client import HostedResult as HostedResult
    from pilothouse_remote.client import HostedSession as HostedSession
    from pilothouse_remote.client import HostedState as HostedState
    from pilothouse_remote.client import HostedSteering as HostedSteering
    from pilothouse_remote.command import CommandTransport as CommandTransport
    from pilothouse_remote.command import in_container as in_container
    from pilothouse_remote.command import in_pod as in_pod
    from pilothouse_remote.command import over_ssh as over_ssh
    from pilothouse_remote.link import Backoff as Backoff
    from pilothouse_remote.transport import WebSocketTransport as WebSocketTransport
    from pilothouse_remote.transport import on_host as on_host

# Loaded late: the transport imports anyio and ssl; a host needs the link alone.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "client": (
            "HostClient HostedAsk HostedLogin HostedLoginState HostedMcp HostedMcpServer HostedResult HostedSession "
            "HostedState HostedSteering"
        ),
        "command": "CommandTransport in_container in_pod over_ssh",
        "link": "Backoff",
        "transport": "WebSocketTransport on_host",
    },
)
