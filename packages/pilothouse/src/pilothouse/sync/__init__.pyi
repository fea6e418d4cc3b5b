# What type checkers see: all names of `pilothouse`; those that wait are the blocking ones of `pilothouse.sync`.
# ruff: noqa: I001, F811 - of two imports of a name, pyright takes the last one and mypy the first one
from pilothouse.sync.generated import Agent as Agent
from pilothouse.sync.generated import configure as configure
from pilothouse.sync.generated import default_agent as default_agent
from pilothouse.sync.generated import query as query
from pilothouse.sync.generated import session as session
from pilothouse.sync.generated import set_default_agent as set_default_agent
from pilothouse.sync.generated import Query as Query
from pilothouse.sync.generated import Session as Session
from pilothouse import *  # noqa: F403 - one list of names, and that is the root's
from pilothouse.sync.generated import Agent as Agent
from pilothouse.sync.generated import configure as configure
from pilothouse.sync.generated import default_agent as default_agent
from pilothouse.sync.generated import query as query
from pilothouse.sync.generated import session as session
from pilothouse.sync.generated import set_default_agent as set_default_agent
from pilothouse.sync.generated import Query as Query
from pilothouse.sync.generated import Session as Session

BLOCKING_NAMES: frozenset[str]
