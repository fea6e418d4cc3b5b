"""Where transcripts lie: as CLI 2.1.330 names its folders, and nowhere else."""

from __future__ import annotations

import os
import pwd
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade_transcripts import Disk

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse_host import find_default_journal
from pilothouse_native.state import find_config_dir
from pilothouse_transcripts import delete_session, get_session_info, get_session_messages, list_sessions, project_key
from pilothouse_transcripts.paths import MAX_KEY_CHARS, find_home, get_config_directory, list_working_trees
from pilothouse_transcripts.stores import SqliteStore

# Names of folders that CLI 2.1.330 has made.
SEEN = {"/tmp/a.b c_d/e": "-tmp-a-b-c-d-e", "/srv/Ünï cödé.dir 𝔘": "-srv--n--c-d--dir---"}


@pytest.mark.parametrize(("path", "key"), SEEN.items())
def test_a_folder_is_named_as_the_cli_names_it(path: str, key: str) -> None:
    assert project_key(path) == key


def test_a_long_name_ends_with_a_hash() -> None:
    # Seen: the folder that the CLI made for such a path under its home, at another root.
    path = "/tmp/pilothouse-home-8bwsnewy/" + "x" * 100 + "/" + "y" * 100 + "/" + "z-é_" * 10
    key = project_key(path)
    assert key == "-tmp-pilothouse-home-8bwsnewy-" + "x" * 100 + "-" + "y" * 69 + "-13tk3q"
    assert key[:MAX_KEY_CHARS] == key.rpartition("-")[0]


def test_links_and_unicode_forms_lead_to_one_folder(tmp_path: Path) -> None:
    real = tmp_path / "naïve"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    assert project_key(link) == project_key(real)
    assert project_key(unicodedata.normalize("NFD", "/srv/naïve")) == project_key("/srv/naïve")


@pytest.mark.parametrize(
    ("given", "expected"), [("/c", "/c"), ("~/c", "~/c"), ("rel", "rel"), ("", "."), (None, "HOME/.claude")]
)
def test_the_configuration_directory(given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if given is None:
        monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    else:
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", given)
    assert str(get_config_directory()) == expected.replace("HOME", os.environ["HOME"])


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a user that its system does not know."""

    def fail(user_id: int) -> None:
        raise KeyError(user_id)

    monkeypatch.setattr("pwd.getpwuid", fail)
    for name in ("HOME", "CLAUDE_CONFIG_DIR", "XDG_STATE_HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_home")
@pytest.mark.skipif(sys.platform == "win32", reason="has other home directories")
@pytest.mark.parametrize(
    "use",
    [
        list_sessions,
        lambda: get_session_messages("5e551017-0000-4000-8000-000000000001"),
        find_default_journal,
        lambda: find_config_dir({}),
        lambda: SqliteStore("~/sessions.db"),
    ],
)
def test_without_a_home_directory_the_error_says_what_to_set(use: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"there is no home directory.* set HOME"):
        use()


@pytest.mark.usefixtures("no_home")
def test_a_configuration_directory_needs_no_home(disk: Disk) -> None:
    assert list_sessions(config_dir=disk.config) == []


def test_an_empty_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    assert find_home({"HOME": "/child"}) == Path("/child")
    assert find_home({"HOME": ""}) == Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize(("name", "counts"), [("my_name", True), ("my.name", False), ("con", False), ("x" * 65, False)])
def test_a_folder_with_a_given_name(disk: Disk, monkeypatch: pytest.MonkeyPatch, name: str, counts: bool) -> None:
    file = disk.session(folder=name)
    file.user("hello")
    monkeypatch.setenv("CLAUDE_CODE_PROJECT_DIR_NAME", name)
    found = [info.session_id for info in list_sessions(disk.cwd)]
    assert found == ([file.id] if counts else [])
    monkeypatch.delenv("CLAUDE_CONFIG_DIR")
    assert list_sessions(disk.cwd) == []


def test_a_long_path_hashed_by_another_host_is_found(disk: Disk) -> None:
    deep = disk.cwd / ("a" * 120) / ("b" * 120)
    deep.mkdir(parents=True)
    key = project_key(deep)
    other = disk.session(deep, folder=key[:MAX_KEY_CHARS] + "-0other0")
    other.user("there")
    neighbour = disk.session(disk.cwd / "c", folder=key[:MAX_KEY_CHARS] + "-1other1")
    neighbour.user("not there")
    assert [info.session_id for info in list_sessions(deep)] == [other.id]


def test_directories_that_share_a_folder_are_told_apart(disk: Disk, tmp_path: Path) -> None:
    one, two = tmp_path / "a-b", tmp_path / "a_b"
    one.mkdir()
    two.mkdir()
    first, second = disk.talk("one", cwd=one), disk.talk("two", cwd=two)
    assert first.path.parent == second.path.parent
    assert [info.session_id for info in list_sessions(one)] == [first.id]
    assert {info.session_id for info in list_sessions()} == {first.id, second.id}


def repository(root: Path) -> Path:
    """What `git worktree add` leaves, without git."""
    main, tree = root / "main", root / "tree"
    mark = main / ".git" / "worktrees" / "tree"
    mark.mkdir(parents=True)
    tree.mkdir()
    (main / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (mark / "commondir").write_text("../..\n")
    (mark / "gitdir").write_text(f"{tree}/.git\n")
    (tree / ".git").write_text(f"gitdir: {mark}\n")
    return main


def test_working_trees_of_a_repository_belong_together(disk: Disk, tmp_path: Path) -> None:
    main = repository(tmp_path)
    tree = tmp_path / "tree"
    (tree / "deep").mkdir()
    expected = {str(main), str(tree)}
    assert (
        set(list_working_trees(main))
        == set(list_working_trees(tree))
        == set(list_working_trees(tree / "deep"))
        == expected
    )
    assert list_working_trees(tmp_path) == []
    here, there = disk.talk("here", cwd=main), disk.talk("there", cwd=tree)
    for place in (main, tree):
        assert {info.session_id for info in list_sessions(place)} == {here.id, there.id}
    assert [info.session_id for info in list_sessions(main, include_worktrees=False)] == [here.id]
    info = get_session_info(there.id, main)
    assert info is not None
    assert info.cwd == str(tree)
    assert get_session_info(there.id, tmp_path) is None


BAD_IDS: list[Any] = [
    None,
    5,
    "",
    "..",
    "../../etc/passwd",
    "a/b",
    "x" * 36,
    "1" * 36,
    "0f0e0d0c-0000-4000-8000-00000000000g",
    "\0",
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_an_id_never_leads_out_of_the_folder(disk: Disk, bad: Any) -> None:
    assert get_session_info(bad) is None
    assert get_session_messages(bad) == []
    with pytest.raises(UsageError, match="not a session id"):
        delete_session(bad)


def test_a_session_that_does_not_exist(disk: Disk) -> None:
    with pytest.raises(SessionNotFoundError, match="there is no session"):
        delete_session("0f0e0d0c-0000-4000-8000-000000000001")


def test_links_pipes_and_folders_are_no_sessions(disk: Disk, tmp_path: Path) -> None:
    file = disk.talk("hello", "hi")
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(file.path.read_bytes())
    folder = file.path.parent
    names = [f"0f0e0d0c-0000-4000-8000-00000000000{n}.jsonl" for n in range(3)]
    (folder / names[0]).symlink_to(secret)
    (folder / names[1]).mkdir()
    os.mkfifo(folder / names[2])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / file.path.name.replace(file.id, file.id[::-1])).write_bytes(b"{}")
    (disk.config / "projects" / "-linked").symlink_to(tmp_path / "elsewhere")
    assert [info.session_id for info in list_sessions(on_problem=disk.problems.append)] == [file.id]
    for name in names:
        assert get_session_messages(name.removesuffix(".jsonl")) == []
        with pytest.raises(SessionNotFoundError):
            delete_session(name.removesuffix(".jsonl"))
    assert secret.exists()
    assert not disk.problems


def test_a_project_folder_that_leads_elsewhere_is_left_alone(disk: Disk, tmp_path: Path) -> None:
    file = disk.talk("hello")
    outside = tmp_path / "outside"
    file.path.parent.rename(outside)
    file.path.parent.symlink_to(outside)
    assert list_sessions(disk.cwd) == []
    assert get_session_messages(file.id, disk.cwd) == []


def test_of_two_files_with_one_id_the_newest_counts(disk: Disk, tmp_path: Path) -> None:
    old = disk.talk("old")
    new = disk.config / "projects" / "-z" / old.path.name
    new.parent.mkdir()
    new.write_bytes(old.path.read_bytes().replace(b'"old"', b'"new"'))
    os.utime(old.path, (1, 1))
    assert [info.first_prompt for info in list_sessions()] == ["new"]
    info = get_session_info(old.id)
    assert info is not None
    assert info.first_prompt == "new"
