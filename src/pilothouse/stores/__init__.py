"""Session stores: where transcripts live beyond one machine, and how a session goes there and comes back."""

from pilothouse.stores.base import Lease as Lease
from pilothouse.stores.base import SessionKey as SessionKey
from pilothouse.stores.base import SessionStore as SessionStore
from pilothouse.stores.base import StoreBackend as StoreBackend
from pilothouse.stores.base import fold_summary as fold_summary
from pilothouse.stores.memory import MemoryStore as MemoryStore
from pilothouse.stores.scoped import ScopedStore as ScopedStore
