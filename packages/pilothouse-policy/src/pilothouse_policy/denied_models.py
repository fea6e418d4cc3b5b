"""Which models a managed `deniedModels` list blocks, as far as names alone tell.

Follows `matchDeniedModels` of the official SDK (0.3.330). An entry is a family (`opus`), a version (`claude-opus-4-5`,
which covers its snapshots, tags and names at other providers), or any other name, which blocks itself alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

FAMILIES = ("fable", "haiku", "opus", "sonnet")
CHANGING_NAMES = frozenset({"best", "default", "opusplan"})
"""Names that stand for another model from release to release. An entry with such a name blocks nothing."""

_CONTEXT_TAG = re.compile(r"\[\w+\]$")
_FAMILY = f"(?P<family>{'|'.join(FAMILIES)})"
_VERSION = r"(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)"
_MODEL = re.compile(rf"(?:{_VERSION}-)?{_FAMILY}(?:-{_VERSION.replace('major', 'major2').replace('minor', 'minor2')})?")
# What may stand before and behind a version in an entry: a provider, a snapshot, the form of a provider.
_ENTRY = re.compile(rf"(?:[\w.:/-]*[./])?(?:claude-)?{_MODEL.pattern}(?:[-@](?:\d{{8}}|latest|fast|v\d+(?::\d+)?))*")


class DeniedModelsMatch(Struct, frozen=True):
    """The answer of `match_denied_models`.

    Args:
        denied: for each model, in order, whether an entry blocks it.
        warnings: notes on entries that block nothing, or less than one may expect.
    """

    denied: list[bool]
    warnings: list[str]


def match_denied_models(models: Iterable[str], denied_models: Iterable[str] | None) -> DeniedModelsMatch:
    """Return which models a managed `deniedModels` list blocks. Nothing is started.

    Only names are compared. Do not permit anything because of it: False promises nothing, as Claude Code also judges
    what an alias or a custom name stands for.

    Args:
        models: names of models.
        denied_models: the list, such as `(await session.settings.get()).effective.get("deniedModels")`.

    Example:
        ```python
        match_denied_models(["opus", "claude-haiku-4-5"], ["opus"]).denied  # [True, False]
        ```
    """
    entries = [entry.strip().lower() for entry in denied_models or ()]
    warnings = [warning for entry in entries if (warning := _explain_entry(entry))]
    return DeniedModelsMatch([any(_blocks(entry, model) for entry in entries) for model in models], warnings)


def _blocks(entry: str, model: str) -> bool:
    if entry in CHANGING_NAMES or not entry:
        return False
    name = model.strip().lower()
    wanted, found = _parse_entry(entry), _MODEL.search(name)
    if wanted is None:
        return name == entry
    if found is None or name in CHANGING_NAMES:
        return False
    family, major, minor = _read_match(found)
    if family != wanted[0]:
        return False
    # A model without a minor version is the first of its major version; an entry without one means all of them.
    return wanted[1] is None or (major == wanted[1] and wanted[2] in (None, minor or 0))


def _parse_entry(entry: str) -> tuple[str, int | None, int | None] | None:
    """Return family, major and minor version of an entry; None for an entry that blocks one exact name."""
    name = _CONTEXT_TAG.sub("", entry)
    if name in FAMILIES:
        return name, None, None
    found = _ENTRY.fullmatch(name)
    parsed = None if found is None else _read_match(found)
    return parsed if parsed is not None and parsed[1] is not None else None


def _read_match(found: re.Match[str]) -> tuple[str, int | None, int | None]:
    major, minor = found["major"] or found["major2"], found["minor"] or found["minor2"]
    return found["family"], None if major is None else int(major), None if minor is None else int(minor)


def _explain_entry(entry: str) -> str:
    if not entry:
        return "an empty entry blocks nothing"
    if entry in CHANGING_NAMES:
        return f"{entry!r} blocks nothing: it stands for another model from release to release; name the model"
    if _parse_entry(entry) is None:
        return f"{entry!r} blocks only the model of exactly this name"
    return ""
