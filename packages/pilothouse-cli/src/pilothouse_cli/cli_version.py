"""Asks a `claude` for its version: what `doctor`, `install-cli` and a failed `ask` do on purpose, and no query does."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory

import anyio

from pilothouse.errors import CLIVersionError
from pilothouse.options import Invocation
from pilothouse.support import parse_version
from pilothouse.transports import CliTransport, ExitInfo, Transport

ANSWER_SECONDS = 10.0
"""Seconds for `--version`. It takes 0.02 s, 0.15 s from a cold disk; a busy machine may need more."""
MAX_OUTPUT_BYTES = 16 * 1024
"""Bytes of output that are examined; a program that writes more is not Claude Code."""
MAX_STDERR_CHARS = 200
"""Characters of standard error that an error quotes."""

# Variables that programs, shims of version managers and dynamic linkers need in order to run at all.
_INHERITED_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH", "NIX_LD",
    "NIX_LD_LIBRARY_PATH", "ASDF_DATA_DIR", "ASDF_DIR", "FNM_DIR", "MISE_DATA_DIR", "NODENV_ROOT", "NVM_DIR",
    "VOLTA_HOME", "XDG_DATA_HOME",
)  # fmt: skip
_QUIET_VARIABLES = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


async def ask_version(path: str, env: Mapping[str, str]) -> str:
    """Run `path --version` with a few variables of `env`, no keys, and an empty configuration directory.

    Returns:
        The version, such as "2.1.332".

    Raises:
        CLIVersionError: it does not report a version; says why.
        ProcessError: it cannot be started.
    """
    with TemporaryDirectory(prefix="pilothouse-version-", ignore_cleanup_errors=True) as directory:
        kept = {name: env[name] for name in _INHERITED_VARIABLES if name in env}
        clean = {**kept, **_QUIET_VARIABLES, "CLAUDE_CONFIG_DIR": directory}
        return await read_version(CliTransport(), path, clean, path, ANSWER_SECONDS)


async def read_version(transport: Transport, cli: str, env: Mapping[str, str], name: str, seconds: float) -> str:
    """Return what `--version` reports through `transport`; see `ask_version`.

    Args:
        transport: what has not been started yet; it is closed.
        cli: as in `Invocation`.
        env: the environment.
        name: what errors call the executable.
        seconds: how long it may take.
    """
    output, ending = b"", None
    try:
        await transport.start(Invocation(cli=cli, argv=("--version",), env=env))
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            with anyio.move_on_after(seconds):
                while len(output) < MAX_OUTPUT_BYTES and (data := await transport.receive()):
                    output += data
                ending = await transport.exit_info()
            await transport.close()
            group.cancel_scope.cancel()
    finally:
        await transport.close()
    # "2.1.332 (Claude Code)": other programs of this name print a version later in the line, if at all.
    version = output.decode("utf-8", "replace").partition(" ")[0].strip()
    if ending is not None and ending.exit_code == 0 and version[:1].isdigit() and parse_version(version):
        return version
    if ending is None:
        raise CLIVersionError(
            f"{name} does not work: it did not answer --version within {seconds:g} s: it is broken, or the machine is"
            " very slow"
        )
    raise _make_error(name, ending)


def _make_error(name: str, ending: ExitInfo) -> CLIVersionError:
    if ending.signal:
        reason = f"--version was killed by {ending.signal}, so it is broken, or not Claude Code"
    elif ending.exit_code:
        reason = f"--version ended with exit code {ending.exit_code}, so it is broken, or not Claude Code"
    else:
        reason = "--version did not print a version, so it is probably not Claude Code"
    stderr = " ".join(ending.stderr.split())[:MAX_STDERR_CHARS]
    text = f"{name} does not work: {reason}" + (f"; standard error: {stderr}" if stderr else "")
    return CLIVersionError(text, exit_code=ending.exit_code, stderr=stderr)
