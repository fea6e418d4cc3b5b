"""Keep up with releases of the CLI: pin one, compare two, and run the tests on others.

    python -m tests.cli_versions bump 2.1.332      write pins.json for this version, and list what
                                                   to check by hand; `latest` is the newest one
    python -m tests.cli_versions drift 2.1.332     print what this version has and the pinned one lacks, or the reverse;
                                                   ends with 1 if pilothouse types or gates something else than this
                                                   version: settings, hook events, fields of messages, of control bodies
                                                   and of hooks, reasons of a refused start; or if its program lacks a
                                                   request, field, capability or variable that pilothouse uses
    python -m tests.cli_versions canary latest     run the tests of the real CLI on this version; several are allowed

Packages come through npm and pip, so registries and proxies are those of the user. The official TypeScript SDK is
released with the CLI: SDK 0.3.N carries the types of CLI 2.1.N, and a manifest with the digests of all its binaries.
`bump` reads that manifest, asks npm and pip for the digests of the archives, and downloads no binary. `drift` and
`canary` download one, for this machine, into the cache, where `pilothouse` removes it after a week without use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, get_args
from xml.etree import ElementTree

import msgspec
from tests.builtin_tools import GENERATED, write_module
from tests.cli_bodies import BODIES, UNDECLARED
from tests.cli_facts import list_checks

from pilothouse.client.controls import CHECKS_PERMISSIONS
from pilothouse.errors import PilothouseError, ProvisionError, StartupRefusal
from pilothouse.hooks import EXIT_REASONS, HOOK_EVENTS
from pilothouse.messages import Message, from_dict
from pilothouse.options import TABLE, CliSettings
from pilothouse.options.renderer import OWN_VARIABLES
from pilothouse.options.table import EnvSwitch, EnvVar
from pilothouse.provision.artifacts import Artifact, CliPins, PackageSource, Pins, cache_root, load_pins
from pilothouse.provision.installer import download, ensure_artifact
from pilothouse.provision.pinned_files import find_platform_key

ROOT = Path(__file__).parents[1]
CORE = ROOT / "packages" / "pilothouse" / "src" / "pilothouse"
PINS = ROOT / "packages" / "pilothouse" / "src" / "pilothouse" / "provision" / "pins.json"
TOOL_TYPES = GENERATED
SDK = "@anthropic-ai/claude-agent-sdk"
BINARY = "@anthropic-ai/claude-code-{platform}"
WHEEL = "claude-agent-sdk"
WHEEL_PLATFORMS = {
    "darwin-arm64": "macosx_11_0_arm64",
    "darwin-x64": "macosx_11_0_x86_64",
    "linux-arm64": "manylinux_2_17_aarch64",
    "linux-x64": "manylinux_2_17_x86_64",
    "win32-x64": "win_amd64",
}
"""The platforms for which the Python SDK has a wheel with the CLI, as pip names them."""
PACKAGE_FILES = ("manifest.json", "sdk-tools.d.ts", "sdk.d.ts", "sdk.mjs")
CLIENT_SECONDS = 120
LATEST = "latest"
UNKNOWN_PROPERTY = "unknown frame"
"""The property under which a test reports a part of a message that pilothouse does not know."""


class Binary(msgspec.Struct, frozen=True):
    """One executable, as the manifest names it; `checksum` is its SHA-256 in hex."""

    binary: str
    checksum: str
    size: int


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The manifest of a release."""

    version: str
    build_date: str
    platforms: dict[str, Binary]


class Release(NamedTuple):
    """A release of the CLI: its manifest, and the SDK of the same release.

    Args:
        manifest: the digests of the programs.
        types: the types and the program of the SDK, as one text.
        tools: the types of the tools.
    """

    manifest: Manifest
    types: str
    tools: str = ""


# Packages


def run_client(*command: str) -> str:
    """Run a package client, and return its standard output.

    Raises:
        ProvisionError: the client is missing, failed, or took too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        first = " / ".join(error.stderr.strip().splitlines()[:3])
        raise ProvisionError(f"{' '.join(command[:4])}: {first or f'exit code {error.returncode}'}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvisionError(f"{' '.join(command[:4])}: {error}") from error
    return done.stdout


def ask_npm(package: str, field: str) -> Any:
    """Return a field of a package's record in the registry of the user; None if there is none."""
    text = run_client("npm", "view", package, field, "--json", "--loglevel=error")
    return json.loads(text) if text.strip() else None


def read_release(version: str) -> Release:
    """Read a release from the SDK's package.

    Args:
        version: a version of the CLI, or "latest".

    Raises:
        ProvisionError: there is no such release, or its package is of another version of the CLI.
    """
    if version != LATEST and not re.fullmatch(r"2\.1\.\d+", version):
        raise ProvisionError(f"expected a version such as 2.1.330, or {LATEST}, got {version!r}")
    wanted = ask_npm(SDK, "version") if version == LATEST else version.replace("2.1.", "0.3.")
    with tempfile.TemporaryDirectory() as directory:
        archive = download(PackageSource("npm", SDK, str(wanted), "", ""), Path(directory), lambda _: None)
        with tarfile.open(archive) as files:
            manifest, tools, *texts = (_read_member(files, f"package/{name}") for name in PACKAGE_FILES)
    release = Release(
        msgspec.json.decode(manifest, type=Manifest), b"\n".join(texts).decode().replace("\r\n", "\n"), tools.decode()
    )
    if version not in (LATEST, release.manifest.version):
        raise ProvisionError(f"{SDK} {wanted} is of Claude Code {release.manifest.version}, not of {version}")
    return release


def _read_member(files: tarfile.TarFile, name: str) -> bytes:
    try:
        member = files.extractfile(name)
    except KeyError:
        member = None
    if member is None:
        raise ProvisionError(f"{SDK}: there is no {name}")
    return member.read()


# Pins


def make_pins(release: Release, old: CliPins) -> CliPins:
    """Make the pins of a release; `old` gives what the registries do not tell."""
    wheel = find_wheel_version(release.manifest.version)
    platforms = {name: make_artifact(release, name, old, wheel) for name in sorted(release.manifest.platforms)}
    return CliPins(
        version=release.manifest.version,
        built=release.manifest.build_date[:10],
        oldest_tested=old.oldest_tested,
        platforms=platforms,
    )


def make_artifact(release: Release, platform: str, old: CliPins, wheel: str | None) -> Artifact:
    """Make the pin of one platform; `wheel` is the version of the Python SDK that bundles this CLI, if any."""
    version, binary = release.manifest.version, release.manifest.platforms[platform]
    package = BINARY.format(platform=platform)
    digest = ask_npm(f"{package}@{version}", "dist.integrity")
    if not isinstance(digest, str) or not digest.startswith("sha512-"):
        raise ProvisionError(f"{package} {version}: npm knows no SHA-512 of it: {digest!r}")
    sources = [PackageSource("npm", package, version, digest, f"package/{binary.binary}")]
    if wheel is not None and platform in WHEEL_PLATFORMS:
        digest = f"sha256-{find_wheel_digest(wheel, WHEEL_PLATFORMS[platform])}"
        sources.append(PackageSource("pip", WHEEL, wheel, digest, f"claude_agent_sdk/_bundled/{binary.binary}"))
    sizes = {source.digest: source.size for artifact in old.platforms.values() for source in artifact.sources}
    return Artifact(
        path=f"cli/{version}/{binary.binary}",
        sources=tuple(msgspec.structs.replace(source, size=sizes.get(source.digest)) for source in sources),
        sha256=binary.checksum,
        executable=True,
        size=binary.size,
    )


def find_wheel_version(version: str) -> str | None:
    """Return the version of the Python SDK in this environment, if it bundles this version of the CLI."""
    try:
        installed = distribution(WHEEL)
        bundled = Path(str(installed.locate_file("claude_agent_sdk/_cli_version.py"))).read_text("utf-8")
    except (PackageNotFoundError, OSError):
        return None
    return installed.version if f'"{version}"' in bundled else None


def find_wheel_digest(version: str, platform: str) -> str:
    """Return the SHA-256 of a wheel, which pip learns from the index without a download."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    only = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", f"--platform={platform}"]
    with tempfile.TemporaryDirectory() as target:
        report = run_client(*pip, *only, f"--target={target}", "--report=-", f"{WHEEL}=={version}")
    return json.loads(report)["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"]


def write_pins(cli: CliPins, path: Path) -> None:
    """Write pins.json with these pins of the CLI; the model stays as it is."""
    pins = Pins(cli=cli, model=msgspec.json.decode(path.read_bytes(), type=Pins).model)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(pins), indent=2) + b"\n")


# Drift


def _find_block(types: str, name: str) -> str:
    """Return the body of a type, without the types inside; "" if there is no such type."""
    found = re.search(rf"^(?:export )?declare type {name} = (?:\w+ & )?\{{\n(.*?)^\}}", types, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def _find_union(types: str, name: str) -> list[str]:
    found = re.search(rf"declare type {name} = ([^;{{]+);", types)
    return [part.strip() for part in found[1].split("|")] if found else []


def _find_options(types: str) -> Iterable[str]:
    return re.findall(r"^    (\w+)\??:", _find_block(types, "Options"), re.MULTILINE)


def _find_subtypes(types: str) -> Iterator[str]:
    yield from re.findall(r'\.request\(\{subtype:"(\w+)"', types)  # what the program sends besides
    for name in re.findall(r"declare type (SDK\w*Request) = \{", types):
        yield from re.findall(r"^    subtype: '(\w+)'", _find_block(types, name), re.MULTILINE)


def _find_messages(types: str) -> Iterator[str]:
    """Yield every message as `type` or `type/subtype`; by its name in the types if it is not a plain type."""
    for name in _find_union(types, "SDKMessage"):
        words = [re.search(rf"^    {key}: '(\w+)'", _find_block(types, name), re.MULTILINE) for key in _MESSAGE_KEYS]
        yield "/".join(word[1] for word in words if word) or name


def _find_list(types: str, name: str) -> list[str]:
    return re.findall(r"'(\w+)'", "".join(re.findall(rf"{name}: readonly \[(.*?)\]", types)))


def find_settings(types: str) -> list[str]:
    """Return the keys of a settings file."""
    block = re.search(r"^export declare interface Settings \{\n(.*?)^\}", types, re.DOTALL | re.MULTILINE)
    return re.findall(r"^    ([\w$]+)\?:", block[1], re.MULTILINE) if block else []


_MESSAGE_KEYS = ("type", "subtype")

SURFACE: Mapping[str, Callable[[str], Iterable[str]]] = {
    "exports": lambda types: re.findall(r"^export declare (?:\w+ )+?(\w+)(?=[<(:; ]| =)", types, re.MULTILINE),
    "options": _find_options,
    "control subtypes": _find_subtypes,
    "messages": _find_messages,
    "settings": find_settings,
    "startup refusals": lambda types: [word.strip("'") for word in _find_union(types, "SDKStartupFailureReason")],
    "fields of messages": lambda types: [f"{name}.{key}" for name, keys in find_fields(types) for key in keys],
    "exit reasons": lambda types: _find_list(types, "EXIT_REASONS"),
    "hooks": lambda types: _find_list(types, "HOOK_EVENTS"),
    **{title: find for title, (find, _) in BODIES.items()},
}
"""What the types tell about a release, and how it is found."""


OWN: Mapping[str, Callable[[str], Iterable[str]]] = {
    "settings": lambda _: CliSettings.__annotations__,
    "startup refusals": lambda _: get_args(StartupRefusal),
    "exit reasons": lambda _: EXIT_REASONS,
    "hooks": lambda _: HOOK_EVENTS,
    "fields of messages": lambda types: _find_own_fields(types),
    **{title: find for title, (_, find) in BODIES.items()},
}
"""What pilothouse itself has, which a release is compared with in place of the pinned one. A difference in either
direction is an error."""


def find_fields(types: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys of every message."""
    names = [*_find_union(types, "SDKMessage"), "SDKResultSuccess", "SDKResultError"]
    for name in dict.fromkeys(names):
        yield name, re.findall(r"^    (\w+)\??:", _find_block(types, name), re.MULTILINE)


def _find_own_fields(types: str) -> Iterator[str]:
    """Yield the keys of every message that its class in pilothouse has."""
    for name, keys in find_fields(types):
        words = {
            key: re.search(rf"^    {key}: '(\w+)'", _find_block(types, name), re.MULTILINE) for key in _MESSAGE_KEYS
        }
        example = {key: word[1] for key, word in words.items() if word}
        if name == "SDKResultError":
            example["subtype"] = "error_during_execution"
        with suppress(PilothouseError):
            cls = type(from_dict(example))
            known = {"type", *cls.__struct_fields__, *cls.__struct_encode_fields__}
            yield from (f"{name}.{key}" for key in keys if key in known or _to_snake(key) in known)


def _to_snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


USED_WORDS = "words that pilothouse uses"


def find_used_words() -> set[str]:
    """Return what this CLI must know: control requests, capabilities, environment variables, fields without a type."""
    words = {CHECKS_PERMISSIONS, *OWN_VARIABLES, *(name.partition(".")[2] for name in UNDECLARED)}
    words.update(_list_message_words(Message))
    for option in TABLE.values():
        targets: Any = option.target if isinstance(option.target, tuple) else (option.target,)
        words.update(target.name for target in targets if isinstance(target, EnvVar | EnvSwitch))
    for path in CORE.rglob("*.py"):
        words.update(re.findall(r'\b_?(?:control|request)\(\s*"([a-z_]+)"', path.read_text("utf-8")))
    return words


def _list_message_words(cls: type[Message]) -> Iterator[str]:
    for kind in cls.__subclasses__():
        yield from (name for name in kind.__struct_encode_fields__ if name.isidentifier())
        yield from _list_message_words(kind)


def find_words(executable: Path, words: Iterable[str]) -> set[str]:
    """Return those of `words` that a program has, each as a whole word."""
    with executable.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as program:
        return {word for word in words if _has_word(program, word.encode())}


def _has_word(program: mmap, word: bytes) -> bool:
    at = program.find(word)
    while at >= 0:  # a regular expression would take minutes
        if re.fullmatch(rb"\W?%s\W?" % word, program[max(0, at - 1) : at + len(word) + 1]):
            return True
        at = program.find(word, at + 1)
    return False


def compare(title: str, before: Iterable[str], after: Iterable[str]) -> list[str]:
    """Return lines about what is new and what is gone; the first line counts."""
    old, new = set(before), set(after)
    lines = [f"{title}: {len(old)} -> {len(new)}"]
    lines += [f"  + {name}" for name in sorted(new - old)]
    return lines + [f"  - {name}" for name in sorted(old - new)]


def find_flags(executable: Path) -> set[str]:
    """Return the flags of `--help`. Nothing else of this machine's configuration is read."""
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.defpath, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        done = subprocess.run(
            [executable, "--help"], env=env, cwd=home, capture_output=True, text=True, timeout=60, check=True
        )
    heads: list[str] = re.findall(r"^  (?:-\w, )?(--[\w-]+(?:, --[\w-]+)*)", done.stdout, re.MULTILINE)
    return {flag for head in heads for flag in head.split(", ")}


def report_drift(version: str) -> Iterator[str]:
    """Yield the lines of the report: the pinned version against this one."""
    pinned, candidate = read_release(load_pins().cli.version), read_release(version)
    yield f"Claude Code {pinned.manifest.version} (pinned) -> {candidate.manifest.version}"
    for title, find in SURFACE.items():
        types = candidate.types if title in OWN else pinned.types
        yield from compare(title, OWN.get(title, find)(types), find(candidate.types))
    yield from compare("flags of --help", *(find_flags(fetch_cli(release)) for release in (pinned, candidate)))
    used = find_used_words()
    yield from compare(USED_WORDS, used, find_words(fetch_cli(candidate), used))


# Canary


def fetch_cli(release: Release) -> Path:
    """Return the executable of a release for this machine, from the cache or the registry; its digest is checked."""
    old, version = load_pins().cli, release.manifest.version
    platform = find_platform_key()
    artifact = old.platforms[platform] if version == old.version else make_artifact(release, platform, old, None)
    return ensure_artifact(artifact, cache_root())


def describe_unknown(part: object) -> str:
    """Return what kind of part an unknown one is, such as "UnknownMessage system/new_subtype"."""
    raw: Any = getattr(part, "raw", None)
    words = [str(raw[key]) for key in _MESSAGE_KEYS if key in raw] if isinstance(raw, Mapping) else []
    return f"{type(part).__name__} {'/'.join(words)}".strip()


class CanaryResult(NamedTuple):
    """What the tests of the real CLI said about a version; `unknown` counts parts of messages by what they are."""

    counts: Mapping[str, int]
    failed: Sequence[str]
    unknown: Mapping[str, int]


def run_canary(version: str, pytest_flags: Sequence[str]) -> bool:
    """Run the tests of the real CLI on a version, print the result, and return whether all passed."""
    release = read_release(version)
    executable = fetch_cli(release)
    env = {**os.environ, "PILOTHOUSE_CLI": str(executable), "PILOTHOUSE_REQUIRE_CLI": "1"}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "real_cli and not slow and not soak", "-p",
            "no:cacheprovider",
        ]  # fmt: skip
        done = subprocess.run(
            [*command, f"--junitxml={report}", "-o", "junit_family=xunit1", *pytest_flags],
            cwd=ROOT,
            env=env,
            check=False,
        )
        result = read_report(report) if report.exists() else CanaryResult({}, (), {})
    print(f"Claude Code {release.manifest.version}: exit code {done.returncode}, {dict(result.counts)}")
    for title, lines in (
        ("failed", result.failed),
        ("unknown", [f"{n} x {what}" for what, n in result.unknown.items()]),
    ):
        for line in lines:
            print(f"  {title}: {line}")
    return done.returncode == 0


def read_report(path: Path) -> CanaryResult:
    """Read what pytest has written about its run."""
    counts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    failed: list[str] = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome = next((mark.tag for mark in case if mark.tag in ("failure", "error", "skipped")), "passed")
        counts[outcome] += 1
        if outcome in ("failure", "error"):
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        unknown.update(mark.get("value", "") for mark in case.iter("property") if mark.get("name") == UNKNOWN_PROPERTY)
    return CanaryResult(counts, failed, unknown)


# The program


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the actions; 0, or 1 if a test failed or a package could not be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.cli_versions")
    actions = parser.add_subparsers(dest="action", required=True)
    for name, help_text in {"bump": "write pins.json", "drift": "compare with the pinned version"}.items():
        actions.add_parser(name, help=help_text).add_argument("version")
    canary = actions.add_parser("canary", help="run the tests of the real CLI; other arguments go to pytest")
    canary.add_argument("versions", nargs="*", default=[load_pins().cli.oldest_tested, LATEST])
    given, rest = parser.parse_known_args(argv)
    try:
        if given.action == "canary":
            passed = [run_canary(version, rest) for version in given.versions]
            return 0 if all(passed) else 1
        if given.action == "drift":
            is_behind = False
            title = ""
            for line in report_drift(given.version):
                print(line, flush=True)
                title = title if line.startswith(" ") else line.partition(":")[0]
                is_behind = is_behind or line.startswith(
                    ("  +", "  -") if title in OWN else "  -" if title == USED_WORDS else "!"
                )
            return 1 if is_behind else 0
        release = read_release(given.version)
        cli = make_pins(release, load_pins().cli)
    except PilothouseError as error:
        print(f"cli_versions: {error}", file=sys.stderr)
        return 1
    write_pins(cli, PINS)
    write_module(cli.version, release.tools, release.types, TOOL_TYPES)
    print(f"{PINS.relative_to(ROOT)}: Claude Code {cli.version}, built on {cli.built}, {len(cli.platforms)} platforms")
    if not any(source.client == "pip" for artifact in cli.platforms.values() for source in artifact.sources):
        print(
            f"pip can fetch none of them: pin the {WHEEL} that bundles {cli.version} in pyproject.toml, and bump again"
        )
    for line in list_checks(cli.version):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
