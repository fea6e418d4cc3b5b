"""What all backends share: texts, digests, and addresses without their passwords."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import StoreError, UsageError
from pilothouse_transcripts.stores.backend import (
    digest_key,
    encode_entry,
    encode_uuid,
    find_address_secrets,
    read_entry,
    redact_address,
    remove_secrets,
)

TEXT = st.text(st.characters(codec=None, categories=None))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_any_entry_comes_back(entry: dict[str, object]) -> None:
    text = encode_entry(entry)
    assert text.isascii()
    assert "\n" not in text
    assert "\0" not in text
    assert repr(read_entry(text)) == repr(entry)
    assert repr(read_entry(text.encode())) == repr(entry)


def test_what_json_cannot_say_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["self"] = endless
    for value in ({"x": {1}}, {"x": b"bytes"}, endless, {"x": 10**5000}):
        with pytest.raises(UsageError, match="JSON"):
            encode_entry(value)
    assert math.isnan(read_entry(encode_entry({"n": math.nan}))["n"])


@given(st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, min_size=1, max_size=3))
def test_other_parts_have_other_digests(one: list[str], other: list[str]) -> None:
    assert (digest_key(*one) == digest_key(*other)) == (one == other)


@given(TEXT, TEXT)
def test_other_uuids_are_kept_apart(one: str, other: str) -> None:
    assert (encode_uuid(one) == encode_uuid(other)) == (one == other)
    assert len(encode_uuid(one)) <= 128
    assert encode_uuid(one).isascii()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:secret@db.example:5432/app?sslmode=require", "postgresql://db.example:5432/app"),
        ("postgresql://u:se@cr:et@db/app", "postgresql://db/app"),
        ("postgresql:///app?host=/run/pg&password=secret", "postgresql:///app?host=/run/pg"),
        ("postgresql://u:sec?ret@db/app", "postgresql://"),
        ("host=db port=5432 dbname=app user=u password='se cret'", "host=db port=5432 dbname=app"),
        ("password=secret", ""),
        ("redis://:secret@cache:6379/2", "redis://cache:6379/2"),
        ("unix://u:secret@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("s3://bucket/prefix?secret_access_key=secret", "s3://bucket/prefix"),
        ("memory://", "memory://"),
    ],
)
def test_only_the_place_of_an_address_is_shown(address: str, shown: str) -> None:
    assert redact_address(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:s3cr3t%21@db/app", "redis://:s3cr3t!@cache", "host=db password='s3cr3t!' user=u",
        "postgresql://db/app?password=s3cr3t%21", "unix:///run/x?username=u&password=s3cr3t!",
    ],
)  # fmt: skip
def test_passwords_are_found_as_written_and_as_meant(address: str) -> None:
    assert (
        remove_secrets(find_address_secrets(address), f"login with s3cr3t! failed at {address}").count("s3cr3t!") == 0
    )


def test_a_short_password_is_hidden_where_it_stands_alone() -> None:
    assert remove_secrets({"k"}, "no such bucket: k, k=1") == "no such bucket: [redacted], [redacted]=1"


@pytest.mark.parametrize("text", ["", "nonsense", b"\xff", '{"a":', "[1]", "7", "[" * 100_000, '{"a":' * 100_000])
def test_an_entry_that_cannot_be_read_is_an_error_of_the_store(text: str | bytes) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        read_entry(text)
