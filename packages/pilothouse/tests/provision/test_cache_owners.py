"""What another user may have written into the cache is neither run nor replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_packages import FakePackageClients

from pilothouse.errors import ProvisionError
from pilothouse.provision import artifacts
from pilothouse.provision.installer import ensure_artifact

pytestmark = pytest.mark.skipif(os.name != "posix", reason="directories of Windows have no such modes")
only_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
NOBODY = 65534


def explain_foreign_writer(file: Path, top: Path) -> str | None:
    return artifacts.explain_foreign_writer(str(file), str(top))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A file in a cache of one's own."""
    file = tmp_path / "cache" / "cli" / "1" / "claude"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    for part in (file, *file.parents[:3]):
        part.chmod(0o755)
    return file


def test_a_cache_of_ones_own_is_fine(place: Path, tmp_path: Path) -> None:
    top = tmp_path / "cache"
    assert explain_foreign_writer(place, top) is None
    assert explain_foreign_writer(place.parent / "not-there" / "claude", top) is None
    (tmp_path / "link").symlink_to(top)
    assert explain_foreign_writer(tmp_path / "link" / "cli" / "1" / "claude", tmp_path / "link") is None
    top.chmod(0o1777)  # nobody else can replace what is in it
    assert explain_foreign_writer(place, top) is None


@pytest.mark.parametrize("depth", range(4))
def test_what_others_can_write_to_is_named(place: Path, tmp_path: Path, depth: int) -> None:
    part = [place, *place.parents][depth]
    part.chmod(0o777)
    assert explain_foreign_writer(place, tmp_path / "cache") == f"other users can write to {part}"


def test_a_link_in_the_cache_is_named(place: Path, tmp_path: Path) -> None:
    place.unlink()
    place.symlink_to("/bin/sh")
    assert explain_foreign_writer(place, tmp_path / "cache") == f"{place} is a link"


@only_root
@pytest.mark.parametrize("depth", range(4))
def test_what_belongs_to_others_is_named(place: Path, tmp_path: Path, depth: int) -> None:
    part = [place, *place.parents][depth]
    os.chown(part, NOBODY, -1)
    assert explain_foreign_writer(place, tmp_path / "cache") == f"{part} belongs to another user"


def test_a_group_may_write_only_if_it_is_the_users_own(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o770)
    monkeypatch.setattr(artifacts, "_is_own_group", lambda group: group == place.stat().st_gid)
    assert explain_foreign_writer(place, tmp_path / "cache") is None
    monkeypatch.setattr(artifacts, "_is_own_group", lambda group: False)
    assert explain_foreign_writer(place, tmp_path / "cache") == f"other users can write to {place}"


def test_the_own_group_has_the_users_name_and_no_other_member(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    def group(name: str, *members: str) -> None:
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, list(members))))

    fields = ("alice", "x", 1000, 1000, "", "/home/alice", "/bin/sh")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(fields))
    for own in (("alice",), ("alice", "alice")):
        group(*own)
        assert artifacts._is_own_group(1000)
    for other in (("users",), ("alice", "mallory")):
        group(*other)
        assert not artifacts._is_own_group(1000)


def test_nothing_is_fetched_into_a_place_of_others(package_clients: FakePackageClients) -> None:
    package_clients.root.mkdir(parents=True)
    package_clients.root.chmod(0o777)
    with pytest.raises(ProvisionError, match="may have been written by another user"):
        ensure_artifact(package_clients.artifact(), package_clients.root)
    assert not package_clients.runs()
