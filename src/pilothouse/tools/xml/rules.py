"""What all calls of one parser have in common. Pure.

Owns nothing but that. Must not know how calls are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilothouse.tools.xml.catalog import Catalog
from pilothouse.tools.xml.ids import CallIds


@dataclass(frozen=True, slots=True)
class Rules:
    """What all calls of one parser have in common.

    Attributes:
        outer: name of the tag around a call.
        has_nonce: whether that has a nonce.
        catalog: the tools.
        ids: of calls.
        limit: longest call, in characters.
    """

    outer: str
    has_nonce: bool
    catalog: Catalog
    ids: CallIds
    limit: int
