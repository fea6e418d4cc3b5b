"""Merges the outputs of several hooks for one event. Pure.

Owns the precedence of CLI 2.1.330: all hooks run, the strictest decision wins, and any hook can end the turn. Must
not know events or hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

_OWN: Final = "hookSpecificOutput"
_VERDICT: Final = "permissionDecision"
_REASON: Final = "permissionDecisionReason"
_WEIGHT: Final = {"deny": 3, "ask": 2, "allow": 1}
_TEXTS: Final = ("additionalContext",)


def merge_hook_outputs(outputs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge `outputs` into one.

    A decision keeps its reason. `continue: false` and a block always stay. Texts for the model are joined. For every
    other field, the last value wins.
    """
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for answer in outputs:
        specific: Any = answer.get(_OWN)
        if isinstance(specific, Mapping):
            _add_specific(own, cast("Mapping[str, Any]", specific))
        _add_common(merged, {key: value for key, value in answer.items() if key != _OWN})
    return {**merged, _OWN: own} if own else merged


def _add_common(merged: dict[str, Any], more: Mapping[str, Any]) -> None:
    if merged.get("continue") is False:
        more = {key: value for key, value in more.items() if key not in ("continue", "stopReason")}
    if merged.get("decision") == "block":
        more = {key: value for key, value in more.items() if key not in ("decision", "reason")}
    merged.update(more)


def _add_specific(own: dict[str, Any], more: Mapping[str, Any]) -> None:
    verdict, known = more.get(_VERDICT), own.get(_VERDICT)
    if verdict is not None and _WEIGHT.get(str(verdict), 0) > _WEIGHT.get(str(known), 0):
        own.pop(_REASON, None)
        own.update({key: more[key] for key in (_VERDICT, _REASON) if key in more})
    for key, value in more.items():
        if key in _TEXTS and key in own:
            own[key] = f"{own[key]}\n{value}"
        elif key not in (_VERDICT, _REASON):
            own[key] = value
