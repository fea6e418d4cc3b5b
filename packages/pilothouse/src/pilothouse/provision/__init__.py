"""Fetches, verifies and caches files that pilothouse needs but does not ship.

Owns the pinned executable and the embedded model (`pinned_files`, start here) and installed copies of the CLI
(`cli_installation`). The code that fetches (`installer`) is imported on demand. Must not know options, transports or
the protocol, and names no registry: the user's own package client has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.provision.pinned_files import PINNED_VERSION as PINNED_VERSION
from pilothouse.provision.pinned_files import ensure_cli as ensure_cli
from pilothouse.provision.pinned_files import ensure_model as ensure_model
from pilothouse.provision.pinned_files import managed_cli as managed_cli
from pilothouse.provision.pinned_files import managed_cli_path as managed_cli_path
from pilothouse.provision.pinned_files import model_path as model_path

if TYPE_CHECKING:
    from pilothouse.provision.cli_installation import install_cli as install_cli
    from pilothouse.provision.cli_installation import is_pinned_cli as is_pinned_cli
    from pilothouse.provision.cli_installation import managed_versions as managed_versions
    from pilothouse.provision.cli_installation import prune_cli as prune_cli
    from pilothouse.provision.cli_installation import uninstall_cli as uninstall_cli


# Loaded lazily: searching the CLI before a query needs none of these.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "cli_installation": "install_cli is_pinned_cli managed_versions prune_cli uninstall_cli",
    },
)
