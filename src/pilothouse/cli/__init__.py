"""The `pilothouse` command: `ask` and `demo`.

Owns the command line, what a person sees in a terminal, and exit codes. Everything else it leaves to the rooms below.
"""

from pilothouse.cli.main import main as main
