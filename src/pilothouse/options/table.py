"""The one table of options: name, kind, default, documentation, and where each value goes.

Owns their order and groups; the rows stand in `asking_rows` and `running_rows`. Validation, rendering, the docs and
the command's flags read it; nothing about an option is written anywhere else, except its static type in `settings`,
`options` and `builder`.
"""

from __future__ import annotations

import msgspec

from pilothouse.options import asking_rows, running_rows
from pilothouse.options.option import Option as Option

GROUPS: dict[str, tuple[Option, ...]] = {
    "model": asking_rows.MODEL,
    "prompt": asking_rows.PROMPT,
    "tools": asking_rows.TOOLS,
    "permissions": asking_rows.PERMISSIONS,
    "limits": running_rows.LIMITS,
    "output": asking_rows.OUTPUT,
    "conversation": running_rows.CONVERSATION,
    "account": running_rows.ACCOUNT,
    "place": running_rows.PLACE,
    "configuration": running_rows.CONFIGURATION,
    "diagnosis": running_rows.DIAGNOSIS,
}
"""The rows by the title of their group, in the order of the documentation."""

TABLE: dict[str, Option] = {
    row.name: msgspec.structs.replace(row, group=title) for title, rows in GROUPS.items() for row in rows
}
"""Every option by name, in the order of the documentation."""
