"""The host: runs sessions for remote clients, over WebSocket and REST. Extra `[server]`.

Owns the children, their journals and access control. Start with `host`; `application` puts it on an address::

    settings → Host ── WebSocketSession ─────── Output ── OutputJournal (SQLite)
                 │ └── RestSession ──────┘
    guard → rest, events, wire (ASGI) ── application (address, signals)
"""

from pilothouse.server.application import check_token as check_token
from pilothouse.server.application import find_token as find_token
from pilothouse.server.application import is_loopback as is_loopback
from pilothouse.server.application import listen as listen
from pilothouse.server.application import make_app as make_app
from pilothouse.server.application import raise_descriptor_limit as raise_descriptor_limit
from pilothouse.server.application import read_token as read_token
from pilothouse.server.application import serve as serve
from pilothouse.server.host import Host as Host
from pilothouse.server.host import HostSettings as HostSettings
from pilothouse.server.host import find_default_journal as find_default_journal
from pilothouse.server.journal import JournalError as JournalError
from pilothouse.server.journal import OutputPrunedError as OutputPrunedError
from pilothouse.server.policy import DEFAULT_ENV as DEFAULT_ENV
from pilothouse.server.policy import ClientLimits as ClientLimits
from pilothouse.server.policy import RefusedRequestError as RefusedRequestError
