"""Copies of directories and archives: what is in them, and what never gets out of them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from git_repositories import left_in, opened

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse_fleet import CopiedDirectory

pytestmark = pytest.mark.anyio


async def test_a_copy_of_a_directory(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "node_modules").mkdir(parents=True)
    (source / "node_modules").mkdir()
    (source / "deep" / "run.sh").write_text("echo")
    (source / "deep" / "run.sh").chmod(0o755)
    (source / "old.pyc").touch()
    (source / "inner").symlink_to("deep")
    (source / "outer").symlink_to("/etc/passwd")
    (source / "broken").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    workspace = await opened(CopiedDirectory(source, root=root, ignore=["node_modules", "*.pyc"]))
    place = await workspace.make("a", is_resumed=False)
    assert sorted(os.listdir(place.path)) == ["broken", "deep", "inner", "outer"]
    assert os.listdir(place.path / "deep") == ["run.sh"]
    assert stat.S_IMODE((place.path / "deep" / "run.sh").stat().st_mode) == 0o755
    assert [os.readlink(place.path / name) for name in ("broken", "inner", "outer")] == [
        "nowhere", "deep", "/etc/passwd",
    ]  # fmt: skip
    (place.path / "deep" / "run.sh").write_text("changed")
    assert (source / "deep" / "run.sh").read_text() == "echo"
    await workspace.release(place, "succeeded")
    assert left_in(root) == []
    assert (source / "deep" / "run.sh").exists()


async def test_a_copy_into_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would be copied into itself"):
        await CopiedDirectory(tmp_path, root=tmp_path / "root").open()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip"])
async def test_a_copy_of_an_archive(tmp_path: Path, root: Path, suffix: str) -> None:
    source = tmp_path / f"Source.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(source, "w") as packed:
            for name, mode, data in (("a/run.sh", 0o100755, "echo"), ("link", 0o120777, "a/run.sh")):
                info = zipfile.ZipInfo(name)
                info.external_attr = mode << 16
                packed.writestr(info, data)
    else:
        with tarfile.open(source, {"tar": "w", "tgz": "w:gz"}.get(suffix, f"w:{suffix[4:]}")) as archive:  # pyright: ignore[reportArgumentType, reportCallIssue]
            add(archive, "a/run.sh", b"echo", mode=0o755)
            add(archive, "link", kind=tarfile.SYMTYPE, target="a/run.sh")
            add(archive, "a/hard", kind=tarfile.LNKTYPE, target="a/run.sh", mode=0o755)
    workspace = await opened(CopiedDirectory(source, root=root, subdirectory="a"))
    place = await workspace.make("a", is_resumed=False)
    assert (place.cwd / "run.sh").read_text() == "echo"
    assert os.access(place.cwd / "run.sh", os.X_OK)
    assert os.readlink(place.path / "link") == "a/run.sh"
    if suffix != "zip":
        assert (place.cwd / "hard").samefile(place.cwd / "run.sh")
    await workspace.release(place, "succeeded")
    assert left_in(root) == []


def add(
    archive: tarfile.TarFile,
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
    mode: int = 0o644,
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname, info.mode = len(data), kind, target, mode
    archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../out", tarfile.REGTYPE, ""),
        ("a/../../out", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.SYMTYPE, "../out"),
        ("hard", tarfile.LNKTYPE, "../out"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
async def test_a_tar_that_leads_out_fails_its_run(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    source = tmp_path / "evil.tar"
    with tarfile.open(source, "w") as archive:
        add(archive, "good", b"x")
        add(archive, name, b"", kind=kind, target=target)
    workspace = await opened(CopiedDirectory(source, root=tmp_path / "root"))
    with pytest.raises(WorkspaceError, match="cannot be unpacked"):
        await workspace.make("a", is_resumed=False)
    assert sorted(os.listdir(tmp_path)) == ["evil.tar", "root"]
    assert left_in(tmp_path / "root") == []


@pytest.mark.parametrize(
    "links",
    [
        {"esc": "a/b/s/../../../out", "a/b/s": "../.."},  # the first leads out only with the second
        {"inner": "a", "inner/deeper": "x"},
    ],
)
async def test_links_of_a_tar_lead_nowhere_else(tmp_path: Path, links: dict[str, str]) -> None:
    source = tmp_path / "evil.tar"
    with tarfile.open(source, "w") as archive:
        for name in ("a", "a/b"):
            add(archive, name, kind=tarfile.DIRTYPE, mode=0o755)
        for name, target in links.items():
            add(archive, name, kind=tarfile.SYMTYPE, target=target)
    workspace = await opened(CopiedDirectory(source, root=tmp_path / "root"))
    with pytest.raises(WorkspaceError, match=r"leads out|goes through a link|outside"):
        await workspace.make("a", is_resumed=False)
    assert left_in(tmp_path / "root") == []


@pytest.mark.parametrize("target", ["/etc", "../out"])
async def test_a_link_of_a_zip_does_not_lead_out(tmp_path: Path, target: str) -> None:
    source = tmp_path / "evil.zip"
    with zipfile.ZipFile(source, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, target)
    workspace = await opened(CopiedDirectory(source, root=tmp_path / "root"))
    with pytest.raises(WorkspaceError, match="leads out of the directory"):
        await workspace.make("a", is_resumed=False)
    assert left_in(tmp_path / "root") == []


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
async def test_a_zip_does_not_lead_out(tmp_path: Path, name: str) -> None:
    source = tmp_path / "evil.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(name, "x")
    workspace = await opened(CopiedDirectory(source, root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    assert [path.is_relative_to(place.path) for path in tmp_path.rglob("out")] == [True]


async def test_sources_that_cannot_be_copied(tmp_path: Path) -> None:
    for name, content, words in (
        ("no.txt", b"text", "is neither a directory nor an archive"),
        ("missing", None, "there is no directory or archive"),
        ("missing.zip", None, "there is no directory or archive"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=words):
            await CopiedDirectory(tmp_path / name, root=tmp_path / "root").open()
    for name in ("no.tar.gz", "no.zip"):
        (tmp_path / name).write_bytes(b"no archive")
        workspace = await opened(CopiedDirectory(tmp_path / name, root=tmp_path / "root"))
        with pytest.raises(WorkspaceError, match="cannot be unpacked"):
            await workspace.make("a", is_resumed=False)
