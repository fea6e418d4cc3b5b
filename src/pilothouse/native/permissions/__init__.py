"""Permissions of the native engine: evaluates the CLI's modes and rules before a tool runs.

Requests no permission and runs nothing. Where the CLI's own decision is unknown, this one is stricter. Start reading
in `evaluation`.
"""

from pilothouse.native.permissions.evaluation import decide as decide
from pilothouse.native.permissions.evaluation import make_hidden_filter as make_hidden_filter
from pilothouse.native.permissions.rules import Decision as Decision
