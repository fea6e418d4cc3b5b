"""Why a file cannot run here, from made-up headers: only what is certain is said."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from pilothouse.transports.start_errors import explain_exec_format

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads the programs of Linux")
LOADER = "/lib64/ld-linux-x86-64.so.2"


def elf(
    *, machine: int = 62, loader: str = LOADER, size: int = 4096, bits: int = 64, order: str = "<", at: int = 64
) -> bytes:
    """A program: header, two segments (the loader's name, and all of the file), and nothing else."""
    wide = bits == 64
    name = loader.encode() + b"\0"
    entry = 56 if wide else 32
    spot = at + 2 * entry
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    header = ident + struct.pack(
        order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), 2, machine, 1, 0, at, 0, 0, 64, entry, 2, 0, 0, 0
    )
    segments = ((3, spot, len(name)), (1, 0, size))
    packed = b"".join(
        struct.pack(order + "IIQQQQQQ", kind, 4, offset, 0, 0, length, length, 1)
        if wide
        else struct.pack(order + "IIIIIIII", kind, offset, 0, 0, length, length, 4, 1)
        for kind, offset, length in segments
    )
    return (header.ljust(at, b"\0") + packed + name).ljust(size, b"\0")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A glibc machine with an x86-64 processor."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("pilothouse.provision.pinned_files.has_glibc", lambda: True)


def said_of(tmp_path: Path, content: bytes, search_path: str = "") -> str:
    file = tmp_path / "claude"
    file.write_bytes(content)
    return explain_exec_format(str(file), search_path)


@linux_only
@pytest.mark.requirement("E64")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (elf(machine=183), ["built for arm64", "this machine is x86_64"]),
        (elf(machine=183, order=">"), ["built for arm64"]),
        (elf(machine=8, bits=32), ["built for MIPS"]),
        (elf(machine=4711), ["another processor (ELF machine 4711)"]),
        (elf(loader="/lib/ld-musl-x86_64.so.1"), ["build for musl", "/lib/ld-musl-x86_64.so.1", "glibc"]),
        (elf(loader="/nix/ld.so"), ["its loader /nix/ld.so is not there"]),
        (elf(machine=3, bits=32, loader="/lib/ld-linux.so.99"), ["its loader /lib/ld-linux.so.99 is not there"]),
        (elf()[:3000], ["cut short", "3000 bytes of at least 4096"]),
        (elf()[:40], ["cut short", "40 bytes"]),
        (b"\x7fELF", ["cut short"]),
        (b"", ["it is empty"]),
        (b"\xcf\xfa\xed\xfe" + bytes(100), ["a program for macOS, and this is Linux"]),
        (b"MZ" + bytes(100), ["a program for Windows"]),
        (b"#!/nowhere/node\n", ["interpreter /nowhere/node, which is not there"]),
        (b"#!/bin/sh\r\n", ["CR LF"]),
        (b"#!/usr/bin/env nosuchnode\n", ["a script for nosuchnode", "not on PATH"]),
        (b"#!/usr/bin/env -S A=b nosuchnode --flag\n", ["a script for nosuchnode"]),
    ],
)
def test_certain_facts_are_reported(content: bytes, words: list[str], host: None, tmp_path: Path) -> None:
    said = said_of(tmp_path, content, "/usr/bin:/bin")
    for word in words:
        assert word in said


@linux_only
def test_the_other_way_round_on_musl(host: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.provision.pinned_files.has_glibc", lambda: False)
    said = said_of(tmp_path, elf(loader="/nowhere/ld-linux-x86-64.so.2"))
    assert "build for glibc" in said
    assert "musl" in said
    assert "loader" in said_of(tmp_path, elf(loader="/nowhere/ld-musl-x86_64.so.1"))


@linux_only
@pytest.mark.parametrize(
    "content",
    [
        elf(loader=sys.executable),
        elf(machine=3, bits=32, loader=sys.executable),
        elf(at=5000, size=9000, loader="/nowhere"),  # its table lies where tools like patchelf put it
        b"\x7fELF" + b"\xff" * 5000,
        b"some text",
        b"\xca\xfe\xba\xbe" + bytes(50),
        b"#!/bin/sh\nexit 0\n",
        b"#!/usr/bin/env sh\n",
        b"#!/usr/bin/env -u HOME sh\n",
        b"#!" + b"x" * 5000,
        b"#!\n",
    ],
)
def test_unknown_formats_are_not_judged(content: bytes, host: None, tmp_path: Path) -> None:
    assert said_of(tmp_path, content, "/usr/bin:/bin") == ""


@linux_only
def test_programs_of_this_machine(tmp_path: Path) -> None:
    assert explain_exec_format(os.path.realpath(sys.executable)) == ""
    assert explain_exec_format(str(tmp_path / "missing")) == ""
    assert explain_exec_format(str(tmp_path)) == ""


@pytest.mark.parametrize(("cpu", "words"), [(0x01000007, "built for x86_64"), (0x0100000C, ""), (7, "")])
def test_on_macos(cpu: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    said = said_of(tmp_path, b"\xcf\xfa\xed\xfe" + struct.pack("<I", cpu))
    assert said.startswith(f"it is {words}") if words else said == ""
    assert "a program for Linux, and this is macOS" in said_of(tmp_path, elf())
