"""Encodings shared by the backends: entries as text, keys as digests, addresses without passwords.

Pure. Knows no backend, no medium and no clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import msgspec

from pilothouse.errors import StoreError, UsageError
from pilothouse.options.secrets import MASK, mask_text
from pilothouse.stores.base import Entry

_MAX_UUID_CHARS = 128  # longer uuids are digested: PostgreSQL indexes at most 2,700 bytes
_PLAIN_UUID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{_MAX_UUID_CHARS}}}")
_MIN_SECRET_CHARS = 6  # shorter secrets are only replaced as whole words
_SETTING_PATTERN = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
_VISIBLE_SETTINGS = ("host", "hostaddr", "port", "dbname", "endpoint", "bucket", "container", "region")
_HARMLESS_SETTINGS = frozenset({
    *_VISIBLE_SETTINGS, "user", "username", "account", "sslmode", "application_name", "connect_timeout", "options",
    "db", "protocol", "scheme", "target_session_attrs", "service",
})  # fmt: skip


def encode_entry(value: object) -> str:
    r"""Encode a value as ASCII JSON: surrogates and NUL are escaped, so every medium can store it. NaN stays NaN.

    Raises:
        UsageError: JSON cannot represent the value.
    """
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an entry of a transcript is what JSON can say: {error}") from None


def read_entry(text: str | bytes) -> Entry:
    """Decode the output of `encode_entry`.

    Raises:
        StoreError: the text is not a JSON object, or is nested too deeply.
    """
    try:
        return decode_entry(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"an entry of the session cannot be read: {error}; the store is damaged") from error


def decode_entry(text: str | bytes) -> Entry:
    """Decode the output of `encode_entry`; raise ValueError or RecursionError for anything else."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # lone surrogates, NaN, 1e400
        found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return cast("Entry", found)


def read_entries(texts: Iterable[str | bytes]) -> list[Entry]:
    """Decode many entries."""
    return [read_entry(text) for text in texts]


def digest_key(*parts: str) -> bytes:
    """Return a digest of 32 bytes for parts of any length; other parts or other boundaries give another digest."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).digest()


def encode_uuid(uuid: str) -> str:
    """Return a uuid in a form every medium can index: unchanged, or a digest if it is long or unusual."""
    return uuid if _PLAIN_UUID.fullmatch(uuid) else "#" + digest_key(uuid).hex()


def redact_address(address: str) -> str:
    """Return the parts of an address that show where the store is, and nothing else."""
    if "://" not in address:
        found = dict(_SETTING_PATTERN.findall(address))
        return " ".join(f"{name}={found[name]}" for name in _VISIBLE_SETTINGS if name in found)
    scheme, rest = address.split("://", 1)
    where = re.split(r"[?#]", rest, maxsplit=1)[0]
    if "@" not in where and "@" in rest:  # a password with an unescaped question mark
        return f"{scheme}://"
    where = where.rpartition("@")[2]
    if where.startswith("/"):  # the socket directory is in the query
        where += "".join(f"?host={value}" for name, value in _parse_query(address) if name == "host")
    return f"{scheme}://{where}"


def _parse_query(address: str) -> list[tuple[str, str]]:
    return parse_qsl(address.partition("?")[2].partition("#")[0], keep_blank_values=True)


def find_address_secrets(address: str) -> frozenset[str]:
    """Return the secrets of an address: passwords, and values of settings not known to be harmless."""
    if "://" in address:
        password = address.split("://", 1)[1].rpartition("@")[0].partition(":")[2]
        found = [*_parse_query(address), ("password", password), ("password", unquote(password))]
    else:
        found = [(name, value.strip("'")) for name, value in _SETTING_PATTERN.findall(address)]
    return frozenset(value for name, value in found if value and name.lower() not in _HARMLESS_SETTINGS)


def remove_secrets(secrets: Iterable[str], text: str) -> str:
    """Remove the given secrets from a text, and everything that looks like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        found = re.escape(secret)
        # A short secret may occur inside other words by chance.
        text = re.sub(found if len(secret) >= _MIN_SECRET_CHARS else rf"(?<!\w){found}(?!\w)", MASK, text)
    return mask_text(text)


def find_setting_secrets(settings: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values of settings: all whose names are not known to be harmless."""
    names = {
        name: name.lower().removeprefix("aws_").removeprefix("azure_").removeprefix("google_") for name in settings
    }
    return frozenset(
        v for k, v in settings.items() if names[k] not in _HARMLESS_SETTINGS and v not in {"", "true", "false"}
    )
