"""How a child is started ahead of the query or session that it is for.

Owns nothing but this step from settings; loaded only where children are started ahead.
"""

from __future__ import annotations

from typing import Any

from pilothouse.client.plan import Plan
from pilothouse.client.sessions import start_of_session
from pilothouse.options import Invocation, Options


def invocation_of(options: Options, *, output_type: Any, session: bool) -> Invocation:
    """What the transport of such a query or session will be started with.

    Raises:
        UsageError: settings that cannot work.
    """
    if session:
        return start_of_session(options)
    return Plan("-", options, output_type=output_type).start_of()[0]
