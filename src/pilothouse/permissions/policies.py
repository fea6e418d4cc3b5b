"""Ready-made `can_use_tool` functions.

They decide only what the CLI asks about: what a rule, the permission mode or a hook allows, it does not ask. To keep
tools away from the model, do not give them to it (`tools=`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pilothouse.permissions.decisions import NOBODY, Allow, Deny
from pilothouse.permissions.requests import PermissionRequest


def allow_all() -> Callable[[PermissionRequest], Awaitable[Allow]]:
    """Allow every call that the CLI asks about, plans included; questions to the user stay unanswered."""

    async def allow(request: PermissionRequest) -> Allow:
        return Allow()

    return allow


def deny_all(message: str = NOBODY) -> Callable[[PermissionRequest], Awaitable[Deny]]:
    """Deny every call that the CLI asks about.

    Args:
        message: why; the model reads it.
    """

    async def refuse(request: PermissionRequest) -> Deny:
        return Deny(message)

    return refuse
