"""One pinned file: fetched, verified, installed whole or not at all. The package clients are fakes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from fake_packages import CONTENT, INSTALLED, FakePackageClients, child_env
from process_checks import eventually

from pilothouse.errors import ProvisionError
from pilothouse.provision import installer
from pilothouse.provision.artifacts import Artifact
from pilothouse.provision.installer import ensure_artifact

IN_CHILD = """
import sys, msgspec
from pathlib import Path
from types import SimpleNamespace
from pilothouse.errors import ProvisionError
from pilothouse.provision.installer import ensure_artifact
from pilothouse.provision.artifacts import Artifact

artifact = msgspec.json.decode(sys.argv[1], type=Artifact)
if len(sys.argv) > 3:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    print(ensure_artifact(artifact, Path(sys.argv[2])))
except ProvisionError as error:
    sys.exit(str(error))
"""


def in_child(package_clients: FakePackageClients, artifact: Artifact, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IN_CHILD, msgspec.json.encode(artifact).decode(), str(package_clients.root), *args]
    return subprocess.Popen(command, env=child_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.requirement("E57")
@pytest.mark.parametrize("client", ["npm", "pip"])
def test_installs_with_either_client(package_clients: FakePackageClients, client: str) -> None:
    package_clients.clients(**{client: "ok"})
    path = ensure_artifact(package_clients.artifact(), package_clients.root)
    assert path.read_bytes() == CONTENT
    assert os.access(path, os.X_OK)
    assert subprocess.run([path], capture_output=True, check=True).stdout == b"pinned\n"
    assert package_clients.files() == INSTALLED
    assert package_clients.runs() == ["npm"] if client == "npm" else ["npm", "pip"]


@pytest.mark.requirement("E58", "E59")
def test_a_new_pin_replaces_the_file(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    ensure_artifact(package_clients.artifact(), package_clients.root)
    other = b"#!/bin/sh\necho newer\n"
    package_clients.pack(other)
    path = ensure_artifact(package_clients.artifact(sha256=None), package_clients.root)
    assert path.read_bytes() == other
    assert package_clients.runs() == ["npm", "npm"]


@pytest.mark.parametrize("sha256", ["pinned", None])
def test_a_damaged_copy_is_replaced(package_clients: FakePackageClients, sha256: str | None) -> None:
    package_clients.clients(npm="ok")
    artifact = package_clients.artifact(sha256=sha256)
    path = ensure_artifact(artifact, package_clients.root)
    path.write_bytes(CONTENT[:-1])
    assert ensure_artifact(artifact, package_clients.root).read_bytes() == CONTENT
    assert package_clients.runs() == ["npm", "npm"]


@pytest.mark.parametrize("sha256", ["pinned", None])
def test_a_touched_copy_is_hashed_and_kept(package_clients: FakePackageClients, sha256: str | None) -> None:
    package_clients.clients(npm="ok")
    artifact = package_clients.artifact(sha256=sha256)
    path = ensure_artifact(artifact, package_clients.root)
    os.utime(path, (1, 1))
    ensure_artifact(artifact, package_clients.root)
    assert package_clients.runs() == ["npm"]


def test_a_copy_without_receipt(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    pinned, unpinned = package_clients.artifact(), package_clients.artifact(sha256=None)
    receipt = ensure_artifact(pinned, package_clients.root).with_name("claude.json")
    receipt.unlink()
    ensure_artifact(pinned, package_clients.root)
    assert package_clients.runs() == ["npm"], "the pinned digest vouches for it"
    receipt.write_text("{")
    ensure_artifact(unpinned, package_clients.root)
    assert package_clients.runs() == ["npm", "npm"], "nothing vouches for it"


def test_a_copy_that_is_not_executable_is_replaced(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    artifact = package_clients.artifact()
    ensure_artifact(artifact, package_clients.root).chmod(0o644)
    assert os.access(ensure_artifact(artifact, package_clients.root), os.X_OK)


def test_both_clients_fail(package_clients: FakePackageClients) -> None:
    package_clients.clients()
    with pytest.raises(ProvisionError) as caught:
        ensure_artifact(package_clients.artifact(), package_clients.root)
    text = str(caught.value)
    assert package_clients.runs() == ["npm", "pip"]
    for part in (
        "npm: cannot reach",
        "pip: cannot reach",
        "second line",
        str(package_clients.root),
        "PILOTHOUSE_CACHE",
    ):
        assert part in text
    assert "secret" not in text + caught.value.stderr
    assert package_clients.files() == {"cli/1/.lock"}


def test_registries_that_cannot_be_reached_are_one_line(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="offline", pip="offline")
    with pytest.raises(ProvisionError) as caught:
        ensure_artifact(package_clients.artifact(), package_clients.root)
    assert str(caught.value) == (
        "could not fetch claude: no registry can be reached (npm: ECONNREFUSED; pip: ECONNREFUSED); check the network, "
        "the proxy, and which registry npm and pip use"
    )
    assert package_clients.files() == {"cli/1/.lock"}


def test_no_client_at_all(
    package_clients: FakePackageClients, without_site_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProvisionError, match=r"npm: not on PATH; pip: not on PATH, and not installed .*ensurepip"):
        ensure_artifact(package_clients.artifact(), package_clients.root)


def test_a_client_that_delivers_nothing(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="empty", pip="ok")
    assert ensure_artifact(package_clients.artifact(), package_clients.root).is_file()
    assert package_clients.runs() == ["npm", "pip"]


def test_a_client_that_stalls_is_ended(package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "SILENT_SECONDS", 1.0)
    package_clients.clients(npm="hang", pip="ok")
    assert ensure_artifact(package_clients.artifact(), package_clients.root).is_file()
    assert package_clients.files() == INSTALLED
    package_clients.clients(npm="hang")
    with pytest.raises(ProvisionError, match="npm: no progress for 1 s"):
        ensure_artifact(package_clients.artifact(sha256="0" * 64), package_clients.root)


@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_another_archive_is_refused(package_clients: FakePackageClients, damage: str) -> None:
    package_clients.clients(npm="ok", pip="ok")
    artifact = package_clients.artifact()
    good = package_clients.tgz.read_bytes()
    package_clients.tgz.write_bytes(good[:-100] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ProvisionError, match=r"pack 1\.0\.0 from npm is not the pinned one"):
        ensure_artifact(artifact, package_clients.root)
    assert package_clients.files() == {"cli/1/.lock"}
    assert package_clients.runs() == ["npm"], "a wrong file is an alarm, not a reason to look elsewhere"


def test_another_member_is_refused(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    with pytest.raises(ProvisionError, match=r"package/claude in archive\.tgz is not the pinned one"):
        ensure_artifact(package_clients.artifact(sha256="0" * 64), package_clients.root)
    assert package_clients.files() == {"cli/1/.lock"}


@pytest.mark.parametrize("client", ["npm", "pip"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "no member"])
def test_an_archive_that_was_pinned_broken(package_clients: FakePackageClients, client: str, damage: str) -> None:
    archive = package_clients.tgz if client == "npm" else package_clients.whl
    if damage == "cut":
        archive.write_bytes(archive.read_bytes()[:-500])
    elif damage == "garbage":
        archive.write_bytes(b"<html>not found</html>")
    package_clients.clients(**{client: "ok"})
    artifact = package_clients.artifact()
    if damage == "no member":
        sources = tuple(msgspec.structs.replace(source, member="package/none") for source in artifact.sources)
        artifact = msgspec.structs.replace(artifact, sources=sources)
    with pytest.raises(ProvisionError, match="has no file package/none" if damage == "no member" else "is damaged"):
        ensure_artifact(artifact, package_clients.root)
    assert package_clients.files() == {"cli/1/.lock"}


def test_a_failed_replacement_keeps_the_old_file(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    path = ensure_artifact(package_clients.artifact(), package_clients.root)
    package_clients.pack(b"newer")
    newer = package_clients.artifact(sha256=None)
    package_clients.clients()
    with pytest.raises(ProvisionError):
        ensure_artifact(newer, package_clients.root)
    assert path.read_bytes() == CONTENT
    assert package_clients.files() == INSTALLED


def test_parallel_installations_fetch_once(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="slow")
    artifact = package_clients.artifact()
    children = [in_child(package_clients, artifact) for _ in range(3)]
    waits: list[str] = []
    eventually(package_clients.runs)
    threads = [
        threading.Thread(
            target=ensure_artifact,
            args=(artifact, package_clients.root, lambda stage, done, total: waits.append(stage)),
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    outputs = [child.communicate(timeout=30) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    assert package_clients.runs() == ["npm"]
    assert set(waits) == {"wait"}


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limit on Windows")
def test_a_full_disk_is_explained(package_clients: FakePackageClients) -> None:
    # A limit on the size of files fails the same write as a full disk does, and needs no rights to set up.
    package_clients.clients(npm="ok")
    output = in_child(package_clients, package_clients.artifact(), "1000000").communicate(timeout=30)
    assert f"cannot install claude into {package_clients.root}: File too large (about 3 MB are needed)" in output[1]
    assert "PILOTHOUSE_CACHE" in output[1]
    assert package_clients.files() == {"cli/1/.lock"}


@pytest.mark.parametrize(("archive_size", "needed"), [(1000, 3), (None, 5)], ids=["known", "unknown"])
def test_a_disk_that_is_too_small_is_noticed_first(
    package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch, archive_size: int | None, needed: int
) -> None:
    package_clients.clients(npm="ok")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    artifact = package_clients.artifact()
    sources = tuple(msgspec.structs.replace(source, size=archive_size) for source in artifact.sources)
    with pytest.raises(
        ProvisionError, match=rf"No space left on device \(about {needed} MB are needed\).*PILOTHOUSE_CACHE"
    ):
        ensure_artifact(msgspec.structs.replace(artifact, sources=sources), package_clients.root)
    assert package_clients.runs() == []
    assert package_clients.files() == {"cli/1/.lock"}


def test_a_cache_that_cannot_be_made(package_clients: FakePackageClients) -> None:
    package_clients.root.write_text("in the way")
    with pytest.raises(ProvisionError, match=r"cannot install claude into .*cache: .*PILOTHOUSE_CACHE"):
        ensure_artifact(package_clients.artifact(), package_clients.root)
    assert package_clients.runs() == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_cache(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="ok")
    artifact = package_clients.artifact()
    path = ensure_artifact(artifact, package_clients.root)
    os.utime(path, (1, 1))
    path.parent.chmod(0o555)
    try:
        assert ensure_artifact(artifact, package_clients.root) == path
        with pytest.raises(ProvisionError, match="PILOTHOUSE_CACHE"):
            ensure_artifact(msgspec.structs.replace(artifact, sha256="0" * 64), package_clients.root)
    finally:
        path.parent.chmod(0o755)


def test_a_cache_that_cannot_be_written_is_explained(
    package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with HOME=/ in a container."""

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ProvisionError, match=r"Permission denied\. Set PILOTHOUSE_CACHE to a directory that this"):
        ensure_artifact(package_clients.artifact(), package_clients.root)


def test_no_home_is_explained(package_clients: FakePackageClients) -> None:
    with pytest.raises(ProvisionError, match=r"no home directory.*PILOTHOUSE_CACHE"):
        ensure_artifact(package_clients.artifact(), Path("~/.cache/pilothouse"))


def test_progress_goes_forward(package_clients: FakePackageClients) -> None:
    package_clients.clients(npm="slow")
    seen: list[tuple[str, int, int | None]] = []
    artifact = package_clients.artifact()
    ensure_artifact(artifact, package_clients.root, lambda stage, done, total: seen.append((stage, done, total)))
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["download", "verify", "extract"]
    for stage in ("download", "verify", "extract"):
        steps = [done for name, done, _ in seen if name == stage]
        assert steps == sorted(steps)
    assert len({done for stage, done, _ in seen if stage == "download"}) > 2
    assert seen[-1] == ("extract", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("at", ["download", "verify", "extract"])
def test_progress_can_end_it(package_clients: FakePackageClients, at: str) -> None:
    package_clients.clients(npm="hang" if at == "download" else "ok")

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == at and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_artifact(package_clients.artifact(), package_clients.root, interrupt)
    assert package_clients.files() == {"cli/1/.lock"}
