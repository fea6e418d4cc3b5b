"""The version of Claude Code that the package brings along; here the one that pilothouse installs."""

from pilothouse.provision import PINNED_VERSION

__cli_version__ = PINNED_VERSION
