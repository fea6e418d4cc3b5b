"""Session stores: keep transcripts outside one machine, resume sessions from them, and write them back.

Owns the store protocol, its backends, and the mirror that copies a running session's transcript. Does not know what
transcripts mean.
Start reading at `base.py` (the protocol and leases), then `memory.py` (the shortest backend), then
`mirrored_transport.py`.
"""

from pilothouse.stores.base import Lease as Lease
from pilothouse.stores.base import ScopedStore as ScopedStore
from pilothouse.stores.base import SessionKey as SessionKey
from pilothouse.stores.base import SessionStore as SessionStore
from pilothouse.stores.base import StoreBackend as StoreBackend
from pilothouse.stores.base import fold_summary as fold_summary
from pilothouse.stores.memory import MemoryStore as MemoryStore
