"""What is secret, and its removal from everything that may be printed or kept. Pure: knows names and shapes, no I/O.

Owns the one rule for repr, errors, logs, journals and cassettes. A secret is a value whose name says so (`DB_PASS`,
`--token`, `apiKeyHelper`), a value in `env` or `headers`, the password or a secret parameter of a URL, and text with
the shape of a well-known kind of key. A key without a name, in an unknown shape, is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pilothouse.options.invocation import Invocation

MASK = "[redacted]"
MIN_SECRET_CHARS = 6
"""Characters. Shorter values are hardly keys, and masking them would make ordinary text unreadable."""
SECRET_FIELDS = frozenset({"env", "headers"})
"""Fields of nested values that usually hold keys: all of their values are masked where they are shown."""
_MAX_DEPTH = 50
"""Levels of nested values. A deeper value is masked as a whole."""

# Patterns as text, compiled on first use, because most queries never need them.
_KEY_LIKE = (
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|BEARER|AUTHORIZATION|CUSTOM_HEADERS|WEBHOOK"
    r"|CONNECTION_?STRING|AUTH_CONFIG|APIKEY|(^|_)(AUTH|PAT|PWD|PW|DSN|SAS)$|(^|_)(PASS|JWT|CREDS?|KEYS?)(_|$)|KEY$|PWD$"
    r"|(?<!BY)(?<!COM)PASS$"
)
_NOT_KEY_LIKE = r"^(OLD)?PWD$|_PATH$|_FILE$|_DIR$|_SOCK$|_TTL|_MS$"
_COUNT_LIKE = r"TOKENS|_MAX|^MAX_"
_PARAMETER_LIKE = r"(^|_)(SIG|SIGNATURE|CODE)$"
_ORDINARY_VALUES = frozenset({"disabled", "enabled", "default"})

# Well-known kinds of keys. Each pattern is stored under a text that all its keys contain, because searching for that
# text is much faster. The secret is the group, or else the whole match.
_SHAPES = {
    "sk-": r"(?<![A-Za-z0-9])sk-(?:ant-[\w-]{6,}|[A-Za-z0-9][\w-]{18,})",
    "gh": r"(?<![A-Za-z0-9])gh[opsur]_\w{10,}",
    "github_pat_": r"github_pat_\w{10,}",
    "glpat-": r"glpat-[\w-]{10,}",
    "xox": r"(?<![A-Za-z0-9])xox[a-z]-[\w-]{8,}",
    "xapp-": r"(?<![A-Za-z0-9])xapp-[\w-]{8,}",
    "AKIA": r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{12,}",
    "ASIA": r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{12,}",
    "AIza": r"AIza[\w-]{20,}",
    "ya29.": r"ya29\.[\w-]{10,}",
    "npm_": r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{20,}",
    "pypi-": r"pypi-[\w-]{20,}",
    "hf_": r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}",
    "_live_": r"[srp]k_live_\w{10,}",
    "SG.": r"(?<![A-Za-z0-9])SG\.[\w-]{10,}\.[\w-]{10,}",
    "eyJ": r"(?<![A-Za-z0-9])eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*",
    "PRIVATE KEY-----": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    "earer ": r"[Bb]earer +((?=[^\s\"']*[0-9])[\w.~+/=-]{12,})",
    "://": r"://[^\s/:@\"'<>\\]*:([^\s/\"'<>\\]+)@",
}
_PARAMETER = r"[?&]([\w.%\[\]-]+)=([^&\s\"'#<>\\]+)"


@lru_cache(maxsize=len(_SHAPES) + 1)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=512)
def is_secret_name(name: str) -> bool:
    """Whether a name marks its value as a key: of a variable, a header, a field or an argument.

    Args:
        name: in any style: `DB_PASS`, `x-api-key`, `--client-secret`, `apiKeyHelper`.
    """
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.lstrip("-")).replace("-", "_").replace(".", "_").upper()
    return bool(re.search(_KEY_LIKE, name)) and not re.search(_NOT_KEY_LIKE, name)


# to collect


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values of an environment, longest first.

    A value is secret if its variable has a name that is typical of keys. Of other values, those parts are secret that
    have the shape of a key, and the password in a URL, whatever the name.

    Args:
        env: names and values.
    """
    found = _SecretCollector()
    for name, value in env.items():
        found.add_variable(name, value)
    return found.sorted()


def invocation_secrets(invocation: Invocation) -> tuple[str, ...]:
    """Return the secret values that a child gets: in its environment, its arguments, servers and settings."""
    found = _SecretCollector()
    for name, value in invocation.env.items():
        found.add_variable(name, value)
    found.walk([invocation.initialize, list(invocation.argv)])
    for file in invocation.files:
        if file.suffix == ".json":
            found.walk(file.content.decode("utf-8", "replace"))
    return found.sorted()


class _SecretCollector:
    """Collects secrets. Masking a value and collecting its secrets are the same traversal."""

    def __init__(self) -> None:
        self.values: set[str] = set()

    def sorted(self) -> tuple[str, ...]:
        # "Bearer <token>" may be printed without its first word.
        parts = {part for value in self.values for part in re.findall(r"^(?i:bearer|basic|token)\s+(\S+)$", value)}
        kept = (value for value in self.values | parts if len(value) >= MIN_SECRET_CHARS)
        return tuple(sorted(kept, key=lambda value: (-len(value), value)))

    def add_variable(self, name: str, value: str) -> None:
        if is_secret_name(name) and not _is_ordinary(name, value):
            self.values.add(value)
            if name.upper().endswith("HEADERS"):  # a header line may appear without its name
                self.values.update(line.partition(":")[2].strip() for line in value.splitlines())
        elif len(value) >= MIN_SECRET_CHARS:
            mask_text(value, self.values.add)

    def walk(self, value: Any) -> None:
        _mask(value, self._add_field, self.values.add, 0)

    def _add_field(self, name: str, value: Any) -> Any:
        """Record a value in `env` or `headers`; only values with the name of a key are searched for elsewhere."""
        if isinstance(value, str):
            self.add_variable(name, value)
        return value


def _is_ordinary(name: str, value: str) -> bool:
    # MAX_THINKING_TOKENS and similar values are limits.
    return value.lower() in _ORDINARY_VALUES or (value.isdigit() and bool(re.search(_COUNT_LIKE, name.upper())))


# to mask


def mask(value: Any) -> Any:
    """Return a copy of a nested value with possible keys masked; names stay.

    Masked are all values in `env` and `headers`, values with a name that is typical of keys, values next to an
    argument with such a name, and keys inside text.

    Example:
        >>> mask({"args": ["--token", "abc", "--level=2"], "env": {"A": "b"}})
        {'args': ['--token', '[redacted]', '--level=2'], 'env': {'A': '[redacted]'}}
    """
    return _mask(value, lambda _name, _value: MASK, _ignore, 0)


def mask_text(text: str, on_secret: Callable[[str], object] | None = None) -> str:
    """Mask everything in a text with the shape of a key, and the passwords and secret parameters of URLs.

    Args:
        text: the text.
        on_secret: called with each secret.
    """

    def hide(match: re.Match[str]) -> str:
        group = match.re.groups  # the last one
        if group == 2 and not _is_secret_parameter(match[1]):
            return match[0]
        if on_secret is not None:
            on_secret(match[group])
        start, end = match.span(group)
        return f"{match.string[match.start() : start]}{MASK}{match.string[end : match.end()]}"

    for marker, pattern in _SHAPES.items():
        if marker in text:
            text = _compiled(pattern).sub(hide, text)
    return _compiled(_PARAMETER).sub(hide, text) if "=" in text and "?" in text else text


def _is_secret_parameter(name: str) -> bool:
    return is_secret_name(name) or bool(re.search(_PARAMETER_LIKE, name.replace("-", "_").upper()))


def _ignore(_secret: str) -> None:
    """Do nothing, for callers that only mask."""


def _mask(value: Any, mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, str):
        return _mask_string(value, mask_field, on_secret, depth)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _mask_item(str(key), item, mask_field, on_secret, depth) for key, item in items}
    if isinstance(value, list | tuple):
        masked = _mask_list(cast("list[Any]", value), mask_field, on_secret, depth)
        return tuple(masked) if isinstance(value, tuple) else masked
    return value


def _mask_item(
    key: str, item: Any, mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object], depth: int
) -> Any:
    if key in SECRET_FIELDS:
        if isinstance(item, dict):
            return {name: mask_field(str(name), inner) for name, inner in cast("dict[Any, Any]", item).items()}
        return mask_field("", item)
    if isinstance(item, str) and item and is_secret_name(key):
        on_secret(item)
        return MASK
    return _mask(item, mask_field, on_secret, depth + 1)


def _mask_string(
    text: str, mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object], depth: int
) -> str:
    if text.lstrip()[:1] in {"{", "["}:  # settings may be JSON text
        import json  # rarely needed

        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            return mask_text(text, on_secret)
        masked = _mask(inner, mask_field, on_secret, depth + 1)
        return text if masked == inner else json.dumps(masked)
    return mask_text(text, on_secret)


def _mask_list(
    values: list[Any], mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object], depth: int
) -> list[Any]:
    """Mask a list of arguments, where `--token x`, `--token=x`, `TOKEN=x` and `Authorization: x` have names."""
    masked: list[Any] = []
    named = False
    for value in values:
        if not isinstance(value, str):
            masked.append(_mask(value, mask_field, on_secret, depth + 1))
            named = False
            continue
        if named and value and not value.startswith("-"):
            on_secret(value)
            masked.append(MASK)
            named = False
            continue
        named = value.startswith("-") and is_secret_name(value)
        masked.append(_mask_argument(value, mask_field, on_secret, depth))
    return masked


def _mask_argument(
    text: str, mask_field: Callable[[str, Any], Any], on_secret: Callable[[str], object], depth: int
) -> str:
    assigned = re.match(r"(-{0,2}[A-Za-z_][\w.-]*)(?:=(?=\S)|:\s*(?=(?:\w+\s+)?\S+$)(?!//))", text)
    if assigned is None:
        return _mask_string(text, mask_field, on_secret, depth)
    value = text[assigned.end() :]
    if is_secret_name(assigned[1]) and not _is_ordinary(assigned[1].lstrip("-").replace("-", "_"), value):
        on_secret(value)
        return f"{assigned[0]}{MASK}"
    return f"{assigned[0]}{_mask_string(value, mask_field, on_secret, depth)}"


class Redactor:
    """Replaces secrets in text: known values, in the forms in which they are printed, and shapes of keys.

    Args:
        values: the secrets. Values of several lines are searched for line by line, because text arrives in lines.
    """

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        self.values = tuple(
            sorted((line for line in lines if len(line) >= MIN_SECRET_CHARS), key=lambda v: (-len(v), v))
        )
        parts = {form for line in self.values for form in _encode_forms(line)}
        kept = sorted((p for p in parts if len(p) >= MIN_SECRET_CHARS), key=lambda p: (-len(p), p))
        self.longest = len(kept[0]) if kept else 0
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def redact(self, text: str) -> str:
        """Return `text` with every secret replaced by `MASK`."""
        return mask_text(self._pattern.sub(MASK, text) if self._pattern else text)


def _encode_forms(line: str) -> Iterator[str]:
    """Return a value as it is, inside a JSON string, in a URL, and in base64."""
    import base64  # needed only when the child writes to standard error
    import json
    from urllib.parse import quote

    yield line
    yield json.dumps(line)[1:-1]
    yield quote(line, safe="", errors="replace")
    data = line.encode("utf-8", "surrogatepass")
    whole = data[: len(data) // 3 * 3]  # text after the value would change the last letters
    if len(whole) >= MIN_SECRET_CHARS:
        yield base64.b64encode(whole).decode()
        yield base64.urlsafe_b64encode(whole).decode()
