"""Session stores: keep transcripts outside one machine, resume sessions from them, and write them back.

Owns the store protocol, its backends, and the mirror that copies a running session's transcript. Does not know what
transcripts mean.
Start reading at `base.py` (the protocol and leases), then `memory.py` (the shortest backend), then
`mirrored_transport.py`.
"""

from typing import TYPE_CHECKING

from pilothouse.support import make_lazy_exports as make_lazy_exports
from pilothouse_transcripts.stores.base import Lease as Lease
from pilothouse_transcripts.stores.base import ScopedStore as ScopedStore
from pilothouse_transcripts.stores.base import SessionKey as SessionKey
from pilothouse_transcripts.stores.base import SessionStore as SessionStore
from pilothouse_transcripts.stores.base import StoreBackend as StoreBackend
from pilothouse_transcripts.stores.base import fold_summary as fold_summary
from pilothouse_transcripts.stores.memory import MemoryStore as MemoryStore

if TYPE_CHECKING:
    from pilothouse_transcripts.stores.objects import ObjectStore as ObjectStore
    from pilothouse_transcripts.stores.postgres import PostgresStore as PostgresStore
    from pilothouse_transcripts.stores.redis import RedisStore as RedisStore
    from pilothouse_transcripts.stores.sqlite import SqliteStore as SqliteStore
    from pilothouse_transcripts.stores.stored_sessions import StoredSessions as StoredSessions
    from pilothouse_transcripts.stores.stored_sessions import import_session_to_store as import_session_to_store


# Loaded lazily: a program needs one of these at most.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "objects": "ObjectStore",
        "postgres": "PostgresStore",
        "redis": "RedisStore",
        "sqlite": "SqliteStore",
        "stored_sessions": "StoredSessions import_session_to_store",
    },
)
