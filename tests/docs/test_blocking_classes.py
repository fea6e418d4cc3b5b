"""The blocking twin is generated: it is that of the asynchronous classes as they are now."""

from __future__ import annotations

import blocking_classes
import pytest


@pytest.mark.requirement("R34")
def test_the_blocking_twin_is_that_of_the_asynchronous_classes() -> None:
    made = blocking_classes.blocking_classes()
    assert blocking_classes.GENERATED.read_text("utf-8") == made, "run python docs/reference.py"


def test_a_rule_that_no_docstring_needs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocking_classes.TEXTS, "no docstring says this", "")
    with pytest.raises(ValueError, match="no docstring says this"):
        blocking_classes.blocking_classes()
