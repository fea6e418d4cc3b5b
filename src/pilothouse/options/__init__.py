"""Settings: the one table, validation, and rendering to an `Invocation`. Knows no I/O."""

from pilothouse.options.invocation import Invocation as Invocation
from pilothouse.options.invocation import PrivateFile as PrivateFile
from pilothouse.options.options import Options as Options
from pilothouse.options.render import child_env as child_env
from pilothouse.options.render import render as render
from pilothouse.options.settings import Settings as Settings
from pilothouse.options.table import TABLE as TABLE
from pilothouse.options.table import Option as Option
