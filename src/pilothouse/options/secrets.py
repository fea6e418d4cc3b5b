"""Which values of an environment are secret, and their removal from text. Pure: knows names and values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pilothouse.options.faults import SECRET_FIELDS

if TYPE_CHECKING:
    from pilothouse.options.invocation import Invocation

MASK = "[redacted]"
SHORTEST = 6
"""Characters. Anything shorter is hardly a key, and masking it would make ordinary text unreadable."""

# Of names. As text, because most queries have nothing to remove secrets from: the first who looks compiles them.
_KEY_LIKE = (
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|BEARER|AUTHORIZATION|CUSTOM_HEADERS"
    r"|(^|_)(AUTH|PAT|PWD)$|APIKEY|(^|_)KEYS?(_|$)|KEY$"
)
_NOT_KEY_LIKE = r"^(OLD)?PWD$|_PATH$|_FILE$|_SOCK$|_TTL|_MS$|_URL$|_URI$"
_COUNT_LIKE = r"TOKENS|_MAX|^MAX_"
_ORDINARY_VALUES = frozenset({"disabled", "enabled", "default"})


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """The secret values of an environment, longest first. (E76)

    A value is secret if its variable is named like a key, a token, a password, a credential or a list of headers; or
    if it is the password inside a URL, whatever the name.

    Args:
        env: names and values.
    """
    found: set[str] = set()
    for name, value in env.items():
        found.update(v for v in _secrets_in(name.upper(), value) if len(v) >= SHORTEST)
    return tuple(sorted(found, key=lambda v: (-len(v), v)))


def invocation_secrets(invocation: Invocation) -> tuple[str, ...]:
    """The secret values that a child gets in any way: its environment, and those of servers and settings. (E76)"""
    import msgspec  # not needed before something is said on standard error

    given: list[Any] = [invocation.initialize]
    for file in invocation.files:
        with suppress(msgspec.DecodeError):  # text is no place for keys
            given.append(msgspec.json.decode(file.content))
    nested = {value for mapping in _mappings(given) for value in secret_values(mapping)}
    # "Bearer <token>" may be printed without its first word.
    parts = {part for value in nested for part in value.split(" ")[1:] if len(part) >= SHORTEST}
    return (*secret_values(invocation.env), *nested, *parts)


def _mappings(value: Any) -> Iterator[dict[str, str]]:
    """The variables and headers anywhere inside JSON, by names as variables have them."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if key in SECRET_FIELDS and isinstance(item, Mapping):
                fields = cast("Mapping[Any, Any]", item)
                yield {str(n).replace("-", "_"): v for n, v in fields.items() if isinstance(v, str)}
            else:
                yield from _mappings(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from _mappings(item)


def _secrets_in(name: str, value: str) -> Iterator[str]:
    if "://" in value and "@" in value:
        yield from _url_password(value)
    if not re.search(_KEY_LIKE, name) or re.search(_NOT_KEY_LIKE, name) or value.lower() in _ORDINARY_VALUES:
        return
    if re.search(_COUNT_LIKE, name) and value.isdigit():  # MAX_THINKING_TOKENS and the like are limits
        return
    yield value
    if name.endswith("HEADERS"):  # a header line may be printed without its name
        yield from (line.partition(":")[2].strip() for line in value.splitlines())


def _url_password(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    from urllib.parse import urlsplit  # slow to import, and few environments hold an address

    try:
        password = urlsplit(value).password
    except ValueError:
        return
    if password:
        yield password


class Redactor:
    """Replaces secret values in text.

    Args:
        values: the secrets. Values of several lines are looked for line by line, because text arrives in lines.
    """

    def __init__(self, values: Iterable[str]) -> None:
        parts = {form for value in values for line in value.splitlines() for form in _forms(line)}
        kept = sorted((p for p in parts if len(p) >= SHORTEST), key=lambda p: (-len(p), p))
        self.longest = len(kept[0]) if kept else 0
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def redact(self, text: str) -> str:
        """`text` with every secret replaced by `MASK`."""
        return self._pattern.sub(MASK, text) if self._pattern else text


def _forms(line: str) -> tuple[str, str]:
    # As it is, and as it stands inside a JSON string: errors are often printed as JSON.
    import json  # not needed before something is said on standard error

    line = line.strip()
    return line, json.dumps(line)[1:-1]
