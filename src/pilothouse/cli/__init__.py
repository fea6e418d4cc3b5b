"""The `pilothouse` command."""

from pilothouse.cli.main import main as main
