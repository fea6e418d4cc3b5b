"""A callback that returns a class in place of a decision is told to call it."""

from __future__ import annotations

import pytest

import pilothouse as ph
from pilothouse.permissions.requests import InvalidAnswerError, parse_decision


@pytest.mark.parametrize("kind", [ph.Allow, ph.Deny])
def test_a_class_is_no_decision_and_the_error_says_so(kind: type) -> None:
    with pytest.raises(InvalidAnswerError, match=rf"decide returned the class {kind.__name__}; call it: return"):
        parse_decision(kind, "decide")
