"""The `pilothouse` command. Owns flags, screens, exit codes and what a person reads; the packages below do the work.

Start reading at `main.py`, then `arguments.py`.
"""

from pilothouse_cli.main import main as main
