"""The leases that one child holds in a store: taken when they are needed, renewed beside it, given back at its end.

Owns when a lease is renewed. What a lease is worth, the store decides.
"""

from __future__ import annotations

import logging
import os
import platform
import uuid

import anyio

from pilothouse.errors import LeaseLostError
from pilothouse.stores.base import Lease, Place, StoreBackend

log = logging.getLogger("pilothouse.stores")

RENEWALS = 3
"""How often a lease is renewed in the time for which it holds."""
RELEASE_SECONDS = 5.0


def new_owner() -> str:
    """A name for one holder, which tells others where it lives."""
    return f"{platform.node() or 'a host'}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Tenure:
    """Leases of one holder.

    Args:
        store: gives them out.
        ttl: seconds for which each holds unless it is renewed.

    Attributes:
        store: the same.
        owner: who holds them, as others are told.
    """

    def __init__(self, store: StoreBackend, ttl: float) -> None:
        self.store = store
        self._ttl = ttl
        self._leases: dict[Place, Lease] = {}
        self.owner = new_owner()

    async def of(self, place: Place) -> Lease:
        """The lease of the session of a transcript; it is taken now if that was not done.

        Raises:
            SessionLeasedError: somebody else holds it.
            StoreError: the store failed.
        """
        lease = self._leases.get(place.main)
        if lease is None:
            lease = self._leases[place.main] = await self.store.acquire(place.main.key, self.owner, self._ttl)
            log.info("session %s is leased to %s", place.session, self.owner)
        return lease

    async def serve(self) -> None:
        """Renew them, until this is cancelled. A store that does not answer is asked again at the next round.

        Raises:
            LeaseLostError: somebody else has taken a session over.
        """
        while True:
            await anyio.sleep(self._ttl / RENEWALS)
            for place, lease in list(self._leases.items()):
                with anyio.move_on_after(self._ttl / RENEWALS):
                    await self._renew(place, lease)

    async def _renew(self, place: Place, lease: Lease) -> None:
        try:
            self._leases[place] = await self.store.renew(lease)
        except LeaseLostError:
            del self._leases[place]
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the store may be there again at the next round
            log.warning("the lease of session %s could not be renewed: %s", place.session, error)

    async def release(self) -> None:
        """Give all of them back, as far as the store answers within a moment. Call it shielded."""
        leases, self._leases = self._leases, {}
        with anyio.move_on_after(RELEASE_SECONDS):
            for lease in leases.values():
                try:
                    await self.store.release(lease)
                except Exception as error:  # noqa: BLE001 - the others are given back all the same
                    log.warning("the lease of session %s could not be given back: %s", lease.place.session, error)
