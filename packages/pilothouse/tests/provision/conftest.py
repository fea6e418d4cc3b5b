"""Fixtures of the provision tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from fake_packages import FakePackageClients


@pytest.fixture
def package_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePackageClients:
    return FakePackageClients(tmp_path, monkeypatch)


@pytest.fixture
def without_site_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pip at all, neither the fake nor the real one."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
