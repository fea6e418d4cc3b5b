"""Files that pilothouse needs and does not ship: fetched with the user's own package client, verified, cached.

`provision.cli` has the pinned Claude Code executable, `provision.managed` what a person does with its copies,
`provision.model` the embedded open model. All are cheap to import; the code that fetches (`fetch`, `clients`,
`archives`) is imported when something has to be fetched. Nothing here knows of options, transports or the wire, and
nothing here names a registry: the package client does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.provision.cli import PINNED_VERSION as PINNED_VERSION
from pilothouse.provision.cli import ensure_cli as ensure_cli
from pilothouse.provision.cli import managed_cli as managed_cli
from pilothouse.provision.cli import managed_cli_path as managed_cli_path

if TYPE_CHECKING:
    from pilothouse.provision.managed import install_cli as install_cli
    from pilothouse.provision.managed import managed_versions as managed_versions
    from pilothouse.provision.managed import prune_cli as prune_cli
    from pilothouse.provision.managed import uninstall_cli as uninstall_cli
    from pilothouse.provision.model import ensure_model as ensure_model
    from pilothouse.provision.model import model_path as model_path


# Looking for the CLI before a query needs none of these.
__getattr__, __dir__ = make_lazy_exports(__name__)
