"""Which children of a pool are alike."""

from __future__ import annotations

from pilothouse.options import Options, render
from pilothouse_pool.warm_child import make_pool_key


def test_children_that_leave_other_things_running_are_not_alike() -> None:
    ends, keeps = (make_pool_key(render(Options(keep_detached=value), {})) for value in (False, True))
    assert ends != keeps


def test_children_with_other_handshakes_are_not_alike() -> None:
    kinds = [make_pool_key(render(Options(managed_settings={"env": {"A": value}}), {})) for value in ("a", "b", "a")]
    assert kinds[0] == kinds[2] != kinds[1]
    assert kinds[0] is not None
