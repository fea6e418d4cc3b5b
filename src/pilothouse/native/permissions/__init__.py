"""Permissions of the native engine: the CLI's modes and rules, judged before a tool runs.

Owns the decision; asks nobody and runs nothing. Where the CLI's own judgement is not known, this one is stricter.
"""

from pilothouse.native.permissions.deciding import decide as decide
from pilothouse.native.permissions.deciding import hidden as hidden
from pilothouse.native.permissions.rules import Rule as Rule
from pilothouse.native.permissions.rules import Rules as Rules
from pilothouse.native.permissions.verdicts import Decision as Decision
