"""Session stores: keep transcripts outside one machine, resume sessions from them, and write them back.

Owns the store protocol, its backends, and the mirror that copies a running session's transcript. Does not know what
transcripts mean.
Start reading at `base.py` (the protocol and leases), then `memory.py` (the shortest backend), then
`mirrored_transport.py`.
"""

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.stores.base import Lease as Lease
from pilothouse.stores.base import ScopedStore as ScopedStore
from pilothouse.stores.base import SessionKey as SessionKey
from pilothouse.stores.base import SessionStore as SessionStore
from pilothouse.stores.base import StoreBackend as StoreBackend
from pilothouse.stores.base import fold_summary as fold_summary
from pilothouse.stores.memory import MemoryStore as MemoryStore

if TYPE_CHECKING:
    from pilothouse.stores.objects import ObjectStore as ObjectStore
    from pilothouse.stores.postgres import PostgresStore as PostgresStore
    from pilothouse.stores.redis import RedisStore as RedisStore
    from pilothouse.stores.sqlite import SqliteStore as SqliteStore
    from pilothouse.stores.stored_sessions import StoredSessions as StoredSessions
    from pilothouse.stores.stored_sessions import import_session_to_store as import_session_to_store


# Loaded lazily: a program needs one of these at most.
__getattr__, __dir__ = make_lazy_exports(__name__)
