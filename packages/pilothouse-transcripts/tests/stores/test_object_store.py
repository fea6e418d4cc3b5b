"""Object storages: what lies where, what may be lost on the way, and services that cannot do what is needed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import StoreConflictError, StoreError, UsageError
from pilothouse_transcripts.stores import objects
from pilothouse_transcripts.stores.base import SessionKey, TranscriptKey
from pilothouse_transcripts.stores.objects import (
    SEAL_BYTES,
    ObjectBucket,
    ObjectStore,
    SessionRecord,
    TranscriptLog,
    _decode_name,
    _encode_name,
    has_main_transcript,
    parse_record,
)

pytestmark = pytest.mark.anyio

KEY: SessionKey = {"project_key": "-work-Project", "session_id": "s1"}
ENTRY = {"type": "x", "uuid": "u-1"}
LARGE = {"type": "x", "uuid": "large", "text": "x" * SEAL_BYTES}
SECRET = "suite-secret-9876"


@pytest.fixture
async def store(make_directory: Callable[[], ObjectStore]) -> AsyncGenerator[ObjectStore]:
    async with make_directory() as store:
        yield store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def _files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("logs", [[], [""], ["subagents/a"], ["", "subagents/ä"]])
async def test_a_record_comes_back_and_its_size_decides_whether_it_is_listed(logs: list[str]) -> None:
    for text in ("", "x", "xy"):
        record = SessionRecord(TranscriptKey("p", "s"), "owner \ud800", 7, 12.5, {"custom_title": text})
        record.logs = {name: TranscriptLog(3, "id", [("part", 2)], ['{"type": "\\u0000"}']) for name in logs}
        data = record.to_bytes()
        assert parse_record(TranscriptKey("p", "s"), data) == record
        assert has_main_transcript(len(data)) == ("" in logs)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300))
def test_names_of_objects_contain_the_parts_of_keys(part: str) -> None:
    name = _encode_name(part)
    assert name == name.lower()  # there are file systems that do not tell capitals
    assert len(name) <= 200
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-~=")
    assert _decode_name(name) == (None if name.startswith("=") else part)


async def test_small_appends_share_one_object_and_large_ones_are_sealed(store: ObjectStore, directory: Path) -> None:
    for n in range(20):
        await store.append(KEY, [{"type": "x", "n": n}])
    record = "sessions/-work-~50roject/s1"
    assert [name for name in _files(directory) if "/" in name] == [record]
    await store.append(KEY, [LARGE])
    assert len(_files(directory / "parts")) == 1
    assert (directory / record).stat().st_size < 1000
    await store.append(KEY, [{"type": "x", "n": 20}])
    assert [entry.get("n") for entry in await store.load(KEY) or []] == [*range(20), None, 20]
    await store.delete(KEY)
    assert _files(directory / "parts") == []


async def test_uuids_of_sealed_parts_are_known_to_every_client(
    store: ObjectStore, make_directory: Callable[[], ObjectStore]
) -> None:
    await store.append(KEY, [LARGE, ENTRY])
    async with make_directory() as second:
        assert await second.append(KEY, [LARGE, ENTRY]) == 2
        assert await second.append(KEY, [{"type": "x", "uuid": "u-2"}, LARGE], after=2) == 3


async def test_a_directory_is_private(store: ObjectStore, directory: Path) -> None:
    await store.append(KEY, [ENTRY])
    assert directory.stat().st_mode & 0o077 == 0


@pytest.mark.requirement("E85")
@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("text", ["", "x" * SEAL_BYTES], ids=["small", "sealed"])
async def test_a_write_whose_answer_got_lost_is_not_written_twice(
    store: ObjectStore,
    make_directory: Callable[[], ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    others: int,
    text: str,
) -> None:
    await store.append(KEY, [ENTRY])
    place = TranscriptKey(KEY["project_key"], KEY["session_id"])
    swap, lost = ObjectBucket.compare_and_swap, [True]

    async with make_directory() as second:

        def swap_once_unheard(bucket: ObjectBucket, path: str, data: bytes, version: Any) -> bool:
            done = swap(bucket, path, data, version)
            if not (path.startswith("sessions/") and lost and lost.pop()):
                return done
            for n in range(others):  # who come between the write and the look whether it arrived
                second._append(place, [{"type": "x", "n": n}], None, None)
            return False

        monkeypatch.setattr(ObjectBucket, "compare_and_swap", swap_once_unheard)
        assert await store.append(KEY, [{"type": "tag", "tag": "no uuid", "text": text}]) == 2
    found = await store.load(KEY) or []
    assert [entry.get("n", entry.get("tag")) for entry in found] == [None, "no uuid", *range(others)]
    assert lost == []


async def test_a_write_that_lost_the_race_leaves_no_part(
    store: ObjectStore, make_directory: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    await store.append(KEY, [ENTRY])
    async with make_directory() as second:
        seal = ObjectStore._seal

        def seal_slowly(self: ObjectStore, place: TranscriptKey, log: TranscriptLog) -> str:
            path = seal(self, place, log)
            monkeypatch.setattr(ObjectStore, "_seal", seal)
            second._append(place, [{"type": "x", "n": 1}], None, None)
            return path

        monkeypatch.setattr(ObjectStore, "_seal", seal_slowly)
        with pytest.raises(StoreConflictError):
            await store.append(KEY, [LARGE], after=1)
    assert _files(directory / "parts") == []
    assert await store.count(KEY) == 2


async def test_a_missing_part_is_reported(store: ObjectStore, directory: Path) -> None:
    await store.append(KEY, [LARGE])
    await store.append(KEY, [ENTRY])
    for path in (directory / "parts").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(StoreError, match=r"lost entries.*parts/-work-~50roject/s1/"):
        await store.load(KEY)


@pytest.mark.parametrize("damage", [b"", b"{}\n{}", b"no json\n", b'{"format": 1}\n{}\n', b"\xff\xfe"])
async def test_a_damaged_record_is_reported(store: ObjectStore, directory: Path, damage: bytes) -> None:
    await store.append(KEY, [ENTRY])
    (directory / "sessions" / "-work-~50roject" / "s1").write_bytes(damage)
    for call in (store.load(KEY), store.append(KEY, [ENTRY])):
        with pytest.raises(StoreError, match="damaged"):
            await call


async def test_a_record_that_is_cut_short_is_reported(store: ObjectStore, directory: Path) -> None:
    await store.append(KEY, [{"type": "x", "n": n} for n in range(9)])
    path = directory / "sessions" / "-work-~50roject" / "s1"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StoreError, match=r"damaged|JSON"):
        await store.load(KEY)


@pytest.mark.parametrize("known", [None, "create"], ids=["none", "create alone"])
async def test_a_service_without_conditional_writes_is_refused(
    make_s3: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch, known: str | None
) -> None:
    put = obstore.put

    def put_blindly(*args: Any, mode: Any = None, **kwargs: Any) -> Any:
        return put(*args, **kwargs, mode=mode if mode == known else None)

    monkeypatch.setattr(obstore, "put", put_blindly)
    async with make_s3() as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="no conditional writes"):
                await store.append(KEY, [ENTRY])


async def test_a_bucket_that_does_not_exist_is_reported(s3_server: dict[str, Any]) -> None:
    config = {
        "endpoint": s3_server["endpoint"],
        "access_key_id": "k",
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }
    async with ObjectStore("s3://never-made/x", config=config) as store:
        with pytest.raises(StoreError, match="no such bucket"):
            await store.append(KEY, [ENTRY])


async def test_a_service_that_cannot_be_reached_is_reported_and_no_secret_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(objects, "_RETRIES", 0)
    config = {
        "endpoint": f"http://127.0.0.1:1/{SECRET}",
        "access_key_id": SECRET,
        "secret_access_key": SECRET,
        "region": "r",
    }
    async with ObjectStore(f"s3://bucket/prefix?token={SECRET}", config=config) as store:
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            await store.load(KEY)
        shown = repr(store) + "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in shown
    assert repr(store) == "ObjectStore('s3://bucket/prefix')"


async def test_a_disk_that_refuses_is_reported(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.append(KEY, [ENTRY])

    def full(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError("Generic LocalFileSystem error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", full)
        with pytest.raises(StoreError, match="disk is full; nothing was written"):
            await store.append(KEY, [{"type": "x"}], after=1)
    assert await store.append(KEY, [{"type": "x"}], after=1) == 2


@pytest.mark.parametrize("url", ["", "bucket/prefix", "/tmp/directory"])
async def test_an_address_is_a_url(url: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        ObjectStore(url)


async def test_a_url_of_an_unknown_service_is_reported() -> None:
    async with ObjectStore("nonsense://bucket") as store:
        with pytest.raises(StoreError):
            await store.load(KEY)


async def test_lists_read_only_what_has_changed(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[SessionKey] = [{**KEY, "session_id": f"s{n}"} for n in range(5)]
    for key in keys:
        await store.append(key, [{"type": "custom-title", "customTitle": "t" * 9000}])
    first = await store.list_session_summaries(KEY["project_key"])
    read: list[str] = []
    beginning = ObjectBucket.read_start
    monkeypatch.setattr(
        ObjectBucket, "read_start", lambda bucket, path, *rest: (read.append(path), beginning(bucket, path, *rest))[1]
    )
    assert await store.list_session_summaries(KEY["project_key"]) == first
    assert read == []
    await store.append(keys[2], [{"type": "custom-title", "customTitle": "new"}])
    second = {row["session_id"]: row["data"] for row in await store.list_session_summaries(KEY["project_key"])}
    assert second["s2"]["custom_title"] == "new"
    assert read == ["sessions/-work-~50roject/s2"]
