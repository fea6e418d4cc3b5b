"""Pinning another version of the CLI, and comparing two: with the real npm, and a registry on loopback."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_versions
import msgspec
import pytest
from cli_bodies import BODIES
from cli_versions import BINARY, SDK, SURFACE, WHEEL_PLATFORMS, CanaryResult, compare, describe_unknown, read_report
from npm_registry import Registry, serve_registry

from pilothouse.errors import ProvisionError
from pilothouse.messages import decode
from pilothouse.provision.artifacts import PackageSource, Pins, load_pins

CLI_BYTES = b"#!/bin/sh\necho '  --print  answer once'\necho '  -m, --model, --mode <name>  model'\n"
PLATFORMS = ("darwin-arm64", "linux-x64", "linux-x64-musl", "win32-x64")
TYPES = """\
export declare const BUILTIN_TOOL_NAMES: readonly ['Bash'];
export declare const HOOK_EVENTS: readonly ['PreToolUse', 'Stop'];
export declare function query(_params: {
    prompt: string;
}): Query;
export declare type Options = {
    /** A model: `nested: 1`. */
    model?: string;
    cwd: string;
    sandbox?: {
        inside?: boolean;
    };
};
declare type SDKControlNewRequest = {
    subtype: 'new_request';
    body: string;
};
export declare type SDKStatusMessage = {
    type: 'system';
    subtype: 'status';
};
export declare interface Settings {
    $schema?: string;
    permissions?: {
        deny?: string[];
    };
    /** Not `inside?: x`. */
    newOne?: boolean;
}
export declare type SDKMessage = SDKStatusMessage | SDKOtherMessage;
"""
PROGRAM = 'class Q{async a(){return this.request({subtype:"hidden_request"})}}'

TOOL_TYPES = "export type AgentOutput = string;\nexport interface BashInput { command: string; }\n"


def pack(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def make_sdk(version: str, types: str = TYPES, **changes: Any) -> bytes:
    """A package of the SDK for this version of the CLI."""
    checksum = hashlib.sha256(CLI_BYTES).hexdigest()
    binaries = {
        name: {"binary": "claude.exe" if "win" in name[:3] else "claude", "checksum": checksum, "size": len(CLI_BYTES)}
        for name in PLATFORMS
    }
    manifest = {"version": version, "buildDate": "2026-12-01T10:00:00Z", "platforms": binaries, "more": 1, **changes}
    return pack({
        "package.json": json.dumps({"name": SDK, "version": version}).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "sdk-tools.d.ts": TOOL_TYPES.encode(),
        "sdk.d.ts": types.replace("\n", "\r\n").encode(),
        "sdk.mjs": PROGRAM.encode(),
    })  # fmt: skip


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry with the SDK and the binaries of CLI 2.1.400 and 2.1.401."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on PATH")
    with serve_registry(monkeypatch) as registry:
        registry.packages[SDK] = {"0.3.400": make_sdk("2.1.400"), "0.3.401": make_sdk("2.1.401")}
        binary = pack({"claude": CLI_BYTES})
        for name in PLATFORMS:
            registry.packages[BINARY.format(platform=name)] = {"2.1.400": binary, "2.1.401": binary}
        yield registry


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of pins.json, which the program changes in place of the real one."""
    copy = tmp_path / "pins.json"
    shutil.copy(cli_versions.PINS, copy)
    monkeypatch.setattr(cli_versions, "PINS", copy)
    monkeypatch.setattr(cli_versions, "ROOT", tmp_path)
    monkeypatch.setattr(cli_versions, "TOOL_TYPES", tmp_path / "tool_types.py")
    if not Path(sys.executable).with_name("ruff").exists():
        pytest.skip("the written types are formatted by ruff")
    return copy


def test_a_version_is_pinned_without_a_download_of_a_binary(
    registry: Registry, pins: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(cli_versions, "find_wheel_version", lambda version: "0.2.300")
    monkeypatch.setattr(cli_versions, "find_wheel_digest", lambda *what: asked.append(what) or "ab" * 32)
    model = load_pins().model
    assert cli_versions.main(["bump", "2.1.400"]) == 0
    first, *checks = capsys.readouterr().out.splitlines()
    assert first == "pins.json: Claude Code 2.1.400, built on 2026-12-01, 4 platforms"
    assert checks[0].startswith("Look at these on Claude Code 2.1.400; no test does.")
    assert "class BashInput(TypedDict):\n    command: str" in pins.with_name("tool_types.py").read_text()
    written = msgspec.json.decode(pins.read_bytes(), type=Pins)
    assert (written.cli.version, written.cli.built, written.model) == ("2.1.400", "2026-12-01", model)
    assert written.cli.oldest_tested == load_pins().cli.oldest_tested
    assert sorted(written.cli.platforms) == sorted(PLATFORMS)
    linux, windows = written.cli.platforms["linux-x64"], written.cli.platforms["win32-x64"]
    assert (linux.path, windows.path) == ("cli/2.1.400/claude", "cli/2.1.400/claude.exe")
    assert (linux.sha256, linux.size, linux.executable) == (hashlib.sha256(CLI_BYTES).hexdigest(), len(CLI_BYTES), True)
    name = BINARY.format(platform="linux-x64")
    digest = base64.b64encode(hashlib.sha512(registry.packages[name]["2.1.400"]).digest()).decode()
    assert linux.sources == (
        PackageSource("npm", name, "2.1.400", f"sha512-{digest}", "package/claude"),
        PackageSource("pip", "claude-agent-sdk", "0.2.300", f"sha256-{'ab' * 32}", "claude_agent_sdk/_bundled/claude"),
    )
    assert [source.client for source in written.cli.platforms["linux-x64-musl"].sources] == ["npm"]
    assert asked == [("0.2.300", WHEEL_PLATFORMS[name]) for name in PLATFORMS if name in WHEEL_PLATFORMS]
    assert [path for path in registry.asked if path.endswith(".tgz")] == [f"/{SDK}/-/0.3.400.tgz"]


def test_the_newest_version_and_no_wheel_for_it(
    registry: Registry, pins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_versions.main(["bump", "latest"]) == 0
    assert "pip can fetch none of them: pin the claude-agent-sdk that bundles 2.1.401" in capsys.readouterr().out
    written = msgspec.json.decode(pins.read_bytes(), type=Pins).cli
    assert written.version == "2.1.401"
    assert {source.client for artifact in written.platforms.values() for source in artifact.sources} == {"npm"}


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("3.0.0", "expected a version such as 2.1.330, or latest, got '3.0.0'"),
        ("2.1.7", "npm"),  # there is no such version
        ("2.1.402", f"{SDK} 0.3.402 is of Claude Code 2.1.400, not of 2.1.402"),
        ("2.1.403", f"{SDK}: there is no package/manifest.json"),
        ("2.1.404", f"npm view {BINARY.format(platform='darwin-arm64')}@2.1.404 dist.integrity: npm "),
    ],
)
def test_what_cannot_be_pinned_changes_nothing(
    registry: Registry, pins: Path, version: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pins.read_bytes()
    archives = registry.packages[SDK]
    archives |= {
        "0.3.402": make_sdk("2.1.400"),
        "0.3.403": pack({"package.json": json.dumps({"name": SDK, "version": "0.3.403"}).encode()}),
        "0.3.404": make_sdk("2.1.404"),
    }
    assert cli_versions.main(["bump", version]) == 1
    assert error in capsys.readouterr().err
    assert pins.read_bytes() == before


def test_what_two_releases_have() -> None:
    found = {title: sorted(set(find(f"{TYPES}\n{PROGRAM}"))) for title, find in SURFACE.items()}
    assert found == {
        "exports": [
            "BUILTIN_TOOL_NAMES",
            "HOOK_EVENTS",
            "Options",
            "SDKMessage",
            "SDKStatusMessage",
            "Settings",
            "query",
        ],
        "options": ["cwd", "model", "sandbox"],
        "control subtypes": ["hidden_request", "new_request"],
        "messages": ["SDKOtherMessage", "system/status"],
        "hooks": ["PreToolUse", "Stop"],
        "settings": ["$schema", "newOne", "permissions"],
        "startup refusals": [],
        "exit reasons": [],
        "fields of messages": ["SDKStatusMessage.subtype", "SDKStatusMessage.type"],
        **{title: [] for title in BODIES},
        "hooks that gate": ["PreToolUse"],
    }
    assert compare("hooks", ["A", "B"], ["B", "C", "D"]) == ["hooks: 2 -> 3", "  + C", "  + D", "  - A"]


def test_the_report_compares_types_and_flags(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = msgspec.structs.replace(load_pins().cli, version="2.1.400")
    monkeypatch.setattr(cli_versions, "load_pins", lambda: Pins(pinned, load_pins().model))
    types = TYPES.replace("    model?", "    fresh?: string;\n    model?").replace("'Stop'", "'Begin'")
    registry.packages[SDK]["0.3.401"] = make_sdk("2.1.401", types)

    def fetch(release: cli_versions.Release) -> Path:
        path = tmp_path / release.manifest.version
        path.write_bytes(CLI_BYTES + (b"echo '  --fresh  new'\n" if path.name == "2.1.401" else b""))
        path.chmod(0o755)
        return path

    monkeypatch.setattr(cli_versions, "fetch_cli", fetch)
    monkeypatch.setattr(cli_versions, "OWN", {"settings": lambda _: ["$schema", "permissions", "oldOne"]})
    monkeypatch.setattr(cli_versions, "find_used_words", lambda: {"fresh"})
    assert cli_versions.main(["drift", "2.1.401"]) == 1  # pilothouse lacks a setting
    assert capsys.readouterr().out.splitlines() == [
        "Claude Code 2.1.400 (pinned) -> 2.1.401",
        "exports: 7 -> 7",
        "options: 3 -> 4",
        "  + fresh",
        "control subtypes: 2 -> 2",
        "messages: 2 -> 2",
        "settings: 3 -> 3",
        "  + newOne",
        "  - oldOne",
        "startup refusals: 0 -> 0",
        "fields of messages: 2 -> 2",
        "exit reasons: 0 -> 0",
        "hooks: 2 -> 2",
        "  + Begin",
        "  - Stop",
        *(f"{title}: {title == 'hooks that gate':d} -> {title == 'hooks that gate':d}" for title in BODIES),
        "flags of --help: 3 -> 4",
        "  + --fresh",
        "words that pilothouse uses: 1 -> 1",
    ]
    monkeypatch.setattr(cli_versions, "OWN", {"settings": lambda _: ["$schema", "permissions", "newOne", "oldOne"]})
    assert cli_versions.main(["drift", "2.1.401"]) == 1  # pilothouse has a setting that this version lacks
    capsys.readouterr()
    monkeypatch.setattr(cli_versions, "OWN", {})
    assert cli_versions.main(["drift", "2.1.401"]) == 0
    monkeypatch.setattr(cli_versions, "find_used_words", lambda: {"fresh", "mcp_stat", "fres"})
    assert cli_versions.main(["drift", "2.1.401"]) == 1  # the program lacks a word that pilothouse uses
    assert capsys.readouterr().out.endswith("words that pilothouse uses: 3 -> 1\n  - fres\n  - mcp_stat\n")


def test_the_words_are_requests_capabilities_and_variables() -> None:
    used = cli_versions.find_used_words()
    assert {"side_question", "mcp_call_check_permissions_v1", "CLAUDE_CONFIG_DIR", "ANTHROPIC_API_KEY"} <= used
    assert {"managedSettings", "begun_message_ids"} <= used  # fields that no type declares
    assert "raw_line" not in used


def test_a_binary_is_checked_against_the_manifest(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli_versions, "find_platform_key", lambda: "linux-x64")
    monkeypatch.setattr(cli_versions, "cache_root", lambda: tmp_path / "cache")
    path = cli_versions.fetch_cli(cli_versions.read_release("2.1.400"))
    assert (path, path.read_bytes()) == (tmp_path / "cache" / "cli" / "2.1.400" / "claude", CLI_BYTES)
    registry.packages[SDK]["0.3.401"] = make_sdk(
        "2.1.401", platforms={"linux-x64": {"binary": "claude", "checksum": "0" * 64, "size": 1}}
    )
    with pytest.raises(ProvisionError, match="is not the pinned one"):
        cli_versions.fetch_cli(cli_versions.read_release("2.1.401"))


REPORT = f"""<testsuites><testsuite>
<testcase classname="a" name="good"><properties><property name="requirement" value="R1"/></properties></testcase>
<testcase classname="a" name="bad"><failure message="x"/></testcase>
<testcase classname="b" name="strange"><properties>
<property name="{cli_versions.UNKNOWN_PROPERTY}" value="UnknownMessage system/new"/>
<property name="{cli_versions.UNKNOWN_PROPERTY}" value="UnknownMessage system/new"/></properties>
<error message="y"/></testcase>
<testcase classname="b" name="left"><skipped message="z"/></testcase>
</testsuite></testsuites>"""


def test_the_result_of_a_run_on_another_version(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert read_report(report) == CanaryResult(
        {"passed": 1, "failure": 1, "error": 1, "skipped": 1},
        ["a::bad", "b::strange"],
        {"UnknownMessage system/new": 2},
    )


def test_an_unknown_part_is_named_by_its_type() -> None:
    assert describe_unknown(decode(b'{"type":"novelty","subtype":"x"}')) == "UnknownMessage novelty/x"


@pytest.mark.matrix  # needs the registries
def test_the_pins_are_those_of_the_registries(pins: Path) -> None:
    before = load_pins()
    assert cli_versions.main(["bump", before.cli.version]) == 0
    assert msgspec.json.decode(pins.read_bytes(), type=Pins) == before
    assert pins.with_name("tool_types.py").read_text() == cli_versions.GENERATED.read_text()


def test_a_field_that_no_message_class_has_is_named() -> None:
    types = """
export declare type SDKMessage = SDKStatusMessage;
declare type SDKStatusMessage = {
    type: 'system';
    subtype: 'status';
    permissionMode?: string;
    ofTomorrow?: string;
};
"""
    lines = compare("fields", cli_versions.OWN["fields of messages"](types), SURFACE["fields of messages"](types))
    assert lines == ["fields: 3 -> 4", "  + SDKStatusMessage.ofTomorrow"]


@pytest.mark.matrix  # needs the registries
def test_pilothouse_has_all_that_it_types_of_the_pinned_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_versions.main(["drift", load_pins().cli.version]) == 0
    out = capsys.readouterr().out
    assert "  + " not in out
    assert "  - " not in out.partition(cli_versions.USED_WORDS)[2]
