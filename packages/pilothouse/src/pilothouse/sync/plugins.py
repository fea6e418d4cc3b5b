"""The blocking `Plugins`. Owns only waiting: `pilothouse.plugins` does everything else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pilothouse.options.options import copy_method_signature
from pilothouse.plugins import Plugins as AsyncPlugins
from pilothouse.sync.portal import get_portal, make_blocking

T = TypeVar("T")


class Plugins:
    """Plugins and marketplaces, for blocking code. Arguments and errors are those of `pilothouse.plugins.Plugins`."""

    __slots__ = ("_inner",)

    @copy_method_signature(AsyncPlugins.__init__)
    def __init__(self, *args: Any, **named: Any) -> None:
        self._inner = AsyncPlugins(*args, **named)

    available = make_blocking(AsyncPlugins.available)
    install = make_blocking(AsyncPlugins.install)
    enable = make_blocking(AsyncPlugins.enable)
    disable = make_blocking(AsyncPlugins.disable)
    update = make_blocking(AsyncPlugins.update)
    uninstall = make_blocking(AsyncPlugins.uninstall)
    marketplaces = make_blocking(AsyncPlugins.marketplaces)
    add_marketplace = make_blocking(AsyncPlugins.add_marketplace)
    update_marketplace = make_blocking(AsyncPlugins.update_marketplace)
    remove_marketplace = make_blocking(AsyncPlugins.remove_marketplace)
    list = make_blocking(AsyncPlugins.list)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return get_portal().call(work, finish=finish)
