"""The host: runs sessions for remote clients, over WebSocket and REST.

Owns the children, their journals and access control. Start with `host`; `application` puts it on an address::

    settings → Host ── WebSocketSession ─────── OutputLog ── OutputJournal (SQLite)
                 │ └── RestSession ──────────┘
    connections → auth → rest, websocket (ASGI) ── application (address, signals)

Where things are:

- a route of REST: the table in `rest.make_routes`; its refusals: `rest` and `auth.HTTP_STATUSES`
- the events of a session: `rest.stream_events`, which reads `OutputLog.read` from a position
- what waits for a person: `approvals`; transcripts on disk, usage, policy: `reports`
- what is kept on disk: `journal`; a table is in its `_SCHEMA`, a field of a session in `JournaledSession`
- one client over the WebSocket: `websocket`; the protocol of the link: `pilothouse_remote`
- what a client may do: `policy`, at the start and with each line of input
"""

from pilothouse_host.application import check_token as check_token
from pilothouse_host.application import find_token as find_token
from pilothouse_host.application import listen as listen
from pilothouse_host.application import make_app as make_app
from pilothouse_host.application import raise_descriptor_limit as raise_descriptor_limit
from pilothouse_host.application import read_token as read_token
from pilothouse_host.application import serve as serve
from pilothouse_host.host import Host as Host
from pilothouse_host.host import HostSettings as HostSettings
from pilothouse_host.host import find_default_journal as find_default_journal
from pilothouse_host.journal import JournalError as JournalError
from pilothouse_host.journal import OutputPrunedError as OutputPrunedError
from pilothouse_host.policy import ClientLimits as ClientLimits
from pilothouse_remote.messages import is_loopback as is_loopback
