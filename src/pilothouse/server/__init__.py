"""The host: runs sessions for remote clients, over WebSocket and REST. Extra `[server]`.

Owns the children, their journals and access control. Start with `host`; `application` puts it on an address::

    settings → Host ── WireSession ─────── Output ── OutputJournal (SQLite)
                 │ └── PromptedSession ──────┘
    guard → rest, events, wire (ASGI) ── application (address, signals)
"""

from pilothouse.server.application import app as app
from pilothouse.server.application import check_token as check_token
from pilothouse.server.application import find_token as find_token
from pilothouse.server.application import is_loopback as is_loopback
from pilothouse.server.application import listen as listen
from pilothouse.server.application import raise_descriptor_limit as raise_descriptor_limit
from pilothouse.server.application import read_token as read_token
from pilothouse.server.application import serve as serve
from pilothouse.server.database import JournalError as JournalError
from pilothouse.server.host import Host as Host
from pilothouse.server.output import PrunedError as PrunedError
from pilothouse.server.policy import DEFAULT_ENV as DEFAULT_ENV
from pilothouse.server.policy import ClientLimits as ClientLimits
from pilothouse.server.policy import Refusal as Refusal
from pilothouse.server.settings import HostSettings as HostSettings
from pilothouse.server.settings import default_journal as default_journal
