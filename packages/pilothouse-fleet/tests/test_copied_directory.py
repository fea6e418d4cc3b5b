"""Copies of directories, archives and git bundles: what is in them, and what never gets out of them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from git_repositories import git, left_in, made_repository, nobody

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse_fleet import CopiedDirectory
from pilothouse_fleet.workspaces import copies

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


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
    workspace = CopiedDirectory(source, root=root, ignore=["node_modules", "*.pyc"])
    await workspace.open(nobody)
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
        await CopiedDirectory(tmp_path, root=tmp_path / "root").open(nobody)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip"])
async def test_a_copy_of_an_archive(tmp_path: Path, root: Path, suffix: str) -> None:
    source = tmp_path / f"Source.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(source, "w") as archive:
            for name, mode, text in (("a/run.sh", 0o100755, "echo"), ("link", 0o120777, "a/run.sh")):
                info = zipfile.ZipInfo(name)
                info.external_attr, info.create_system = mode << 16, 3
                archive.writestr(info, text)
    else:
        with tarfile.open(source, {"tar": "w", "tgz": "w:gz"}.get(suffix, f"w:{suffix[4:]}")) as archive:  # pyright: ignore[reportArgumentType, reportCallIssue]
            add(archive, "a/run.sh", b"echo", mode=0o755)
            add(archive, "link", kind=tarfile.SYMTYPE, target="a/run.sh")
    workspace = CopiedDirectory(source, root=root, subdirectory="a")
    await workspace.open(nobody)
    place = await workspace.make("a", is_resumed=False)
    assert (place.cwd / "run.sh").read_text() == "echo"
    assert os.access(place.cwd / "run.sh", os.X_OK)
    assert os.readlink(place.path / "link") == "a/run.sh"
    await workspace.release(place, "succeeded")


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
        ("pipe", tarfile.FIFOTYPE, ""),
        ("/abs", tarfile.REGTYPE, ""),
        ("hard", tarfile.LNKTYPE, "not/there"),
        ("good", tarfile.SYMTYPE, "other"),
        ("/".join("x" * 66), tarfile.REGTYPE, ""),
    ],
)
async def test_a_tar_that_leads_out_is_refused(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    source = tmp_path / "evil.tar"
    with tarfile.open(source, "w") as archive:
        add(archive, "good", b"x")
        add(archive, name, b"", kind=kind, target=target)
    with pytest.raises(UsageError, match="leads out of the directory of a run"):
        await CopiedDirectory(source, root=tmp_path / "root").open(nobody)
    assert os.listdir(tmp_path) == ["evil.tar"]


@pytest.mark.parametrize("name", ["../out", "/abs", "a/../../out", "..\\out", "C:/x"])
async def test_a_zip_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    source = tmp_path / "evil.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(UsageError, match="leads out of the directory of a run"):
        await CopiedDirectory(source, root=tmp_path / "root").open(nobody)


LINKS = [
    [("link", "/etc")],
    [("link", "../../out")],
    [("a", "b/.."), ("b", "..")],
    [("a", "."), ("a/b", "../..")],
    [("b", "."), ("a", "b/../x")],
    [("a", "b"), ("b", "a")],
    [("a/b/c", "../../../out")],
]


@pytest.mark.parametrize("suffix", ["tar", "zip"])
@pytest.mark.parametrize("links", LINKS)
async def test_links_of_an_archive_stay_inside(tmp_path: Path, links: list[tuple[str, str]], suffix: str) -> None:
    source = tmp_path / f"evil.{suffix}"
    made_of_links(source, links)
    with pytest.raises(UsageError, match="leads out of the directory of a run"):
        await CopiedDirectory(source, root=tmp_path / "root").open(nobody)


def made_of_links(source: Path, links: list[tuple[str, str]], *more: tuple[str, bytes]) -> None:
    if source.suffix == ".zip":
        with zipfile.ZipFile(source, "w") as packed:
            for name, target in links:
                info = zipfile.ZipInfo(name)
                info.external_attr, info.create_system = 0o120777 << 16, 3
                packed.writestr(info, target)
            for name, data in more:
                packed.writestr(name, data)
    else:
        with tarfile.open(source, "w") as archive:
            for name, target in links:
                add(archive, name, kind=tarfile.SYMTYPE, target=target)
            for name, data in more:
                add(archive, name, data)


@pytest.mark.parametrize("suffix", ["tar", "zip"])
async def test_links_inside_of_an_archive_are_kept(tmp_path: Path, root: Path, suffix: str) -> None:
    source = tmp_path / f"good.{suffix}"
    links = [("x/up", "../y/file"), ("z", "x/up"), ("all", "."), ("x/deep", "../x/../y"), ("broken", "y/none")]
    made_of_links(source, links, ("y/file", b"found"))
    workspace = CopiedDirectory(source, root=root)
    await workspace.open(nobody)
    place = await workspace.make("a", is_resumed=False)
    assert (place.path / "z").read_text() == (place.path / "all" / "x" / "deep" / "file").read_text() == "found"
    assert {name: os.readlink(place.path / name) for name, _ in links} == dict(links)


async def test_the_trick_with_long_names_does_not_get_out(tmp_path: Path, root: Path) -> None:
    # Python before 3.11.13, 3.12.11 and 3.13.4 gives up following links where the path is too long.
    source = tmp_path / "evil.tar"
    directory, path = "d" * 247, ""
    with tarfile.open(source, "w") as archive:
        for letter in "abcdefghijklmnop":
            add(archive, os.path.join(path, directory), kind=tarfile.DIRTYPE, mode=0o755)
            add(archive, os.path.join(path, letter), kind=tarfile.SYMTYPE, target=directory)
            path = os.path.join(path, directory)
        short = "/".join("abcdefghijklmnop")
        long_link = os.path.join(short, "l" * 254)
        add(archive, long_link, kind=tarfile.SYMTYPE, target="../" * 16)
        add(archive, "escape", kind=tarfile.SYMTYPE, target=f"{long_link}/../..")
        add(archive, "escape/ESCAPED.txt", b"out")
    workspace = CopiedDirectory(source, root=root)
    with pytest.raises(UsageError, match="leads out of the directory of a run"):
        await workspace.open(nobody)
    with pytest.raises(WorkspaceError, match="cannot be unpacked"):
        copies.unpack_archive(source, root / "forced", lambda: None)
    assert not list(tmp_path.rglob("ESCAPED.txt"))


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "zip"])
async def test_an_archive_that_is_too_large_is_refused(
    tmp_path: Path, root: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / f"large.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in "abcd":
                packed.writestr(name, b"x" * 1000)
    else:
        with tarfile.open(source, f"w:{suffix[4:]}") as archive:  # pyright: ignore[reportArgumentType, reportCallIssue]
            for name in "abcd":
                add(archive, name, b"x" * 1000)
    await CopiedDirectory(source, root=root).open(nobody)
    for name, limit in (("MAX_BYTES", 3999), ("MAX_MEMBERS", 3)):
        with monkeypatch.context() as patched:
            patched.setattr(copies, name, limit)
            with pytest.raises(UsageError, match="is too large"):
                await CopiedDirectory(source, root=root).open(nobody)


async def test_a_zip_that_lies_about_sizes_unpacks_no_more(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "bomb.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a", b"x" * 100_000)
    data = source.read_bytes()
    central = data.index(b"PK\x01\x02")
    source.write_bytes(data[: central + 24] + (10).to_bytes(4, "little") + data[central + 28 :])
    with pytest.raises(WorkspaceError, match="cannot be unpacked"):
        copies.unpack_archive(source, root, lambda: None)
    assert sum(path.stat().st_size for path in root.rglob("*")) <= 10


async def test_hard_links_of_a_tar(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "hard.tar"
    with tarfile.open(source, "w") as archive:
        add(archive, "file", b"x", mode=0o755)
        add(archive, "deep/hard", kind=tarfile.LNKTYPE, target="./file")
    workspace = CopiedDirectory(source, root=root)
    await workspace.open(nobody)
    place = await workspace.make("a", is_resumed=False)
    assert (place.path / "deep" / "hard").read_bytes() == b"x"
    assert (place.path / "deep" / "hard").samefile(place.path / "file")  # no more bytes than the archive has
    assert os.access(place.path / "deep" / "hard", os.X_OK)


async def test_an_archive_that_changes_is_checked_again(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "evil.zip"
    made_of_links(source, [], ("fine", b"x"))
    workspace = CopiedDirectory(source, root=root)
    await workspace.open(nobody)
    made_of_links(source, [("link", "/etc")])
    with pytest.raises(WorkspaceError, match=r"cannot be unpacked: .* leads"):
        await workspace.make("a", is_resumed=False)
    assert left_in(root) == []


async def test_sources_that_cannot_be_copied(tmp_path: Path) -> None:
    for name, content, words in (
        ("no.tar.gz", b"no tar", "cannot be read"),
        ("no.zip", b"no zip", "cannot be read"),
        ("no.bundle", b"no bundle", "is not a git bundle"),
        ("no.txt", b"text", "is neither a directory nor an archive"),
        ("missing", None, "there is no directory or archive"),
        ("missing.zip", None, "there is no directory or archive"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=words):
            await CopiedDirectory(tmp_path / name, root=tmp_path / "root").open(nobody)


async def test_a_copy_of_a_git_bundle(tmp_path: Path, root: Path) -> None:
    repository = made_repository(tmp_path / "repository")
    git(repository, "bundle", "create", str(tmp_path / "it.bundle"), "HEAD", "main")
    workspace = CopiedDirectory(tmp_path / "it.bundle", root=root)
    await workspace.open(nobody)
    place = await workspace.make("a", is_resumed=False)
    assert (place.path / "a.txt").read_text() == "one\n"
    (place.path / "new.txt").write_text("new\n")
    await workspace.patch(place, tmp_path / "patch")
    assert "+new" in (tmp_path / "patch").read_text()
    await workspace.release(place, "succeeded")
