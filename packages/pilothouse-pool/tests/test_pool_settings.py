"""A settings file is checked against what a child of a pool reports, too: it runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pilothouse as ph
from pilothouse.errors import SettingsError
from pilothouse_pool import Pool
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio


async def test_a_named_file_is_read_for_a_child_of_a_pool(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({"permissions": {"deny": ["Bash"]}}))
    with FakeCLI().on_control("get_settings", {"sources": []}).text("done") as fake:
        async with Pool() as pool:
            query = ph.query("go", settings="own.json", cwd=tmp_path, cli=fake.path, transport=pool)
            with pytest.raises(SettingsError, match=r"\(own\.json\): .*permissions\.deny\[0\]"):
                await query
