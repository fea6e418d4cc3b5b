"""The flags of `pilothouse batch` and `worker` for directories of runs and their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from git_repositories import git, made_repository, worktrees

from pilothouse.errors import UsageError
from pilothouse_cli.batch import make_workspace_settings
from pilothouse_cli.flags import WorkspaceRequest
from pilothouse_cli.main import main
from pilothouse_fleet import CopiedDirectory, GitWorktree
from pilothouse_testing import FakeCLI


def test_what_flags_stand_for(tmp_path: Path) -> None:
    assert make_workspace_settings(WorkspaceRequest()) == {"workspace": None, "artifacts": None}
    found = make_workspace_settings(
        WorkspaceRequest(worktree=".", workspaces=str(tmp_path), artifacts=str(tmp_path), patch=True)
    )
    assert isinstance(found["workspace"], GitWorktree)
    assert found["workspace"].root == tmp_path
    assert found["artifacts"].patch
    found = make_workspace_settings(WorkspaceRequest(copy_from=".", keep_workspaces="never"))
    assert isinstance(found["workspace"], CopiedDirectory)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"worktree": ".", "copy_from": "."}, "give --worktree or --copy-from, not both"),
        ({"ref": "main"}, "--ref needs --worktree"),
        ({"workspaces": "x"}, "--workspaces needs --worktree or --copy-from"),
        ({"keep_workspaces": "never"}, "--keep-workspaces needs --worktree or --copy-from"),
        ({"artifacts": "x", "patch": True}, "--artifacts needs --worktree or --copy-from"),
        ({"worktree": ".", "patch": True}, "--patch needs --artifacts"),
        ({"worktree": ".", "artifact": ("*.txt",)}, "--artifact needs --artifacts"),
        ({"worktree": ".", "artifacts": "x"}, "--artifacts needs --artifact, --patch, or both"),
        ({"worktree": ".", "artifacts": "ftp://x", "patch": True}, "not ftp://"),
        ({"worktree": ".", "artifacts": "x", "artifact": ("../x",)}, "a path without '..'"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_workspace_settings(WorkspaceRequest(**flags))


def test_a_batch_with_a_worktree_for_each_prompt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    repository = made_repository(tmp_path / "repository")
    (tmp_path / "prompts.jsonl").write_text('"one"\n"two"\n')

    def play(child: Any) -> None:
        from pathlib import Path

        child.expect("user")
        Path("a.txt").write_text("changed\n")
        Path("made.log").write_text("log")
        child.emit(
            {"type": "system", "subtype": "init", "session_id": "s"},
            {"type": "result", "subtype": "success", "is_error": False, "result": "ok", "session_id": "s"},
        )

    with FakeCLI.from_function(play) as fake:
        code = main([
            "batch", str(tmp_path / "prompts.jsonl"), f"--cli={fake.path}", f"--worktree={repository}",
            f"--workspaces={tmp_path}/places", "--keep-workspaces=never", f"--artifacts={tmp_path}/saved",
            "--artifact=*.log", "--patch", f"-o{tmp_path}/out.jsonl", f"--journal={tmp_path}/runs.db",
        ])  # fmt: skip
    assert code == 0, capfd.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        patch, log = row["artifacts"]
        assert Path(log).read_text() == "log"
        assert "+changed" in Path(patch).read_text()
        assert "made.log" in Path(patch).read_text()
    assert worktrees(repository) == []
    assert git(repository, "status", "--porcelain") == ""
    shutil.rmtree(repository)
    again = ["batch", str(tmp_path / "prompts.jsonl"), f"--worktree={repository}", f"--journal={tmp_path}/runs.db"]
    assert main(again) == 2
    assert "there is no directory" in capfd.readouterr().err
