"""Plugins and marketplaces of Claude Code: lists them and changes them with `claude plugin`.

Runs the same executable, in the same directory and environment, as a child with these options. Sessions that run take
over changes with `session.settings.reload_plugins()`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
from msgspec import field

from pilothouse.client.controls import CamelControlResult, to_result, to_results
from pilothouse.errors import ControlTimeout, PluginError, UsageError
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options import Options
from pilothouse.options.renderer import render_child_env
from pilothouse.options.secrets import mask
from pilothouse.tracebacks import hide_arguments
from pilothouse.transports.child_process import ABANDON_GRACE_SECONDS, ChildProcess, ExitStatus, spawn
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.discovery import find_or_install_cli
from pilothouse.transports.pipes import PipeReader
from pilothouse.transports.start_errors import check_system, make_start_error
from pilothouse.transports.watchdog import KILL

PluginScope: TypeAlias = Literal["user", "project", "local"]
"""Whose settings: your own, the project's for everybody, or the project's for you."""

_ELSEWHERE = ("transport", "user", "isolation")
"""Options of children whose plugins are not those of this user on this machine."""


class InstalledPlugin(CamelControlResult, frozen=True, kw_only=True):
    """An installed plugin; `id` is its name as in "review@ours"."""

    id: str = ""
    version: str = ""
    scope: str = ""
    enabled: bool = False
    install_path: str | None = None
    installed_at: str | None = None
    last_updated: str | None = None


class AvailablePlugin(CamelControlResult, frozen=True, kw_only=True):
    """A plugin of a marketplace that can be installed; `id` is what `install` takes."""

    id: str = field(default="", name="pluginId")
    name: str = ""
    description: str = ""
    marketplace_name: str = ""


class Marketplace(CamelControlResult, frozen=True, kw_only=True):
    """A marketplace; `source` is the kind of its source, such as "github" or "directory"."""

    name: str = ""
    source: str = ""
    install_location: str | None = None


class PluginChange(CamelControlResult, frozen=True, kw_only=True):
    """What a change has done, in words and as ids; of an update also the versions."""

    message: str = ""
    plugin_id: str | None = None
    marketplace: str | None = None
    scope: str | None = None
    old_version: str | None = None
    new_version: str | None = None


# The class has a method `list`.
InstalledPlugins: TypeAlias = list[InstalledPlugin]
AvailablePlugins: TypeAlias = list[AvailablePlugin]
Marketplaces: TypeAlias = list[Marketplace]


class Plugins:
    """The plugins and marketplaces that a child with these options would have.

    ::

        plugins = Plugins(ph.Options(cwd="project"))
        await plugins.add_marketplace("acme/plugins")
        await plugins.install("review@acme", scope="project")

    Each call runs `claude plugin`, and raises `PluginError` if that fails, `ControlTimeout` if it takes too long, and
    `CLINotFoundError` or `CLIStartError` if it does not start. What it has started, such as `git clone`, ends with it.
    A plugin may bring hooks and MCP servers, which run as you: install those that you trust.

    Args:
        options: the options of the children, such as `agent.options`; `cli`, `cwd`, `env`, `inherit_env` and
            `config_dir` of them count. Default: none.
        timeout: seconds for each call. Default 300, for a marketplace that is cloned.

    Raises:
        UsageError: children with these options do not have the plugins of this user on this machine.
    """

    def __init__(self, options: Options | None = None, *, timeout: float = 300.0) -> None:
        self._options = options or Options()
        self._timeout = timeout
        given = self._options.as_dict()
        if other := next((name for name in _ELSEWHERE if given.get(name) is not None), None):
            raise UsageError(f"plugins of a child with the option {other!r} are not managed from here")

    async def list(self) -> InstalledPlugins:
        """Return the installed plugins, with those that Claude Code brings."""
        return to_results(InstalledPlugin, await self._read("list", "--json"))

    async def available(self) -> AvailablePlugins:
        """Return the plugins of the marketplaces that are not installed."""
        body = as_mapping(await self._read("list", "--json", "--available"))
        return to_results(AvailablePlugin, body.get("available"))

    @hide_arguments
    async def install(
        self,
        plugin: str,
        *,
        scope: PluginScope | None = None,
        config: Mapping[str, str] | None = None,
        accept_command: str | None = None,
    ) -> PluginChange:
        """Install a plugin.

        Args:
            plugin: its id, such as "review@acme".
            scope: the settings that it is entered in. Default: "user".
            config: values of options that the plugin declares, keys too: Claude Code reads them from its input once
                the plugin is installed, and keeps the sensitive ones with its login. `PluginError` if it refuses one;
                the plugin is installed then, without these values.
            accept_command: the digest of a command that the marketplace runs to install the plugin, from
                `PluginError.raw["shownCommand"]["sha256"]`: show the command to a person first. Default: none is run.
        """
        made = await self._change("install", plugin, scope=scope, accept_command=accept_command)
        if config:  # not as `install --config`: every user of this machine can read the arguments of a process
            values = msgspec.json.encode(dict(config))
            await self._read("configure", "--json", "--values-stdin", "--", made.plugin_id or plugin, content=values)
        return made

    async def enable(self, plugin: str, *, scope: PluginScope | None = None) -> PluginChange:
        """Enable a plugin. Default of `scope`: where it is installed."""
        return await self._change("enable", plugin, scope=scope)

    async def disable(self, plugin: str, *, scope: PluginScope | None = None) -> PluginChange:
        """Disable a plugin. Default of `scope`: where it is enabled."""
        return await self._change("disable", plugin, scope=scope)

    async def update(
        self, plugin: str, *, scope: PluginScope | None = None, accept_command: str | None = None
    ) -> PluginChange:
        """Update a plugin to the newest version of its marketplace; `accept_command` as in `install`."""
        return await self._change("update", plugin, scope=scope, accept_command=accept_command)

    async def uninstall(
        self, plugin: str, *, scope: PluginScope | None = None, keep_data: bool = False
    ) -> PluginChange:
        """Remove a plugin and, without `keep_data`, its saved data. Default of `scope`: "user"."""
        return await self._change("uninstall", plugin, scope=scope, keep_data=keep_data)

    async def marketplaces(self) -> Marketplaces:
        """Return the marketplaces."""
        return to_results(Marketplace, await self._read("marketplace", "list", "--json"))

    async def add_marketplace(self, source: str, *, scope: PluginScope | None = None) -> PluginChange:
        """Add a marketplace: a directory, a URL, or "owner/repository" on GitHub. Default of `scope`: "user"."""
        return await self._change("marketplace add", source, scope=scope)

    async def update_marketplace(self, name: str) -> PluginChange:
        """Read a marketplace again from its source."""
        return await self._change("marketplace update", name)

    async def remove_marketplace(self, name: str, *, scope: PluginScope | None = None) -> PluginChange:
        """Remove a marketplace and the plugins from it. Default of `scope`: from all settings."""
        return await self._change("marketplace remove", name, scope=scope)

    async def _change(self, command: str, target: str, **flags: Any) -> PluginChange:
        # Behind "--" a name is never a flag.
        body = await self._read(*command.split(), "--json", *_render_flags(flags), "--", target)
        return to_result(PluginChange, body)

    async def _read(self, *arguments: str, content: bytes = b"") -> Any:
        """Run `claude plugin` with this input, and return what it prints; raises if it reports a failure."""
        command = " ".join(["plugin", *(word for word in arguments[:2] if not word.startswith("-"))])
        child = await self._start("plugin", *arguments)
        try:
            with anyio.fail_after(self._timeout):
                status, output, errors = await _communicate(child, content)
        except TimeoutError:
            raise ControlTimeout(f"`claude {command}` took longer than {self._timeout:g} s", subtype=command) from None
        finally:
            await _end(child)
        body = _decode(output)
        if status.code == 0 and body is not None:
            return body
        report = as_mapping(body)
        reason = str(report.get("message") or errors.decode(errors="replace").strip() or "no output")
        raise PluginError(
            f"`claude {command}` failed with {status.signal or f'exit code {status.code}'}: {mask(reason)}",
            code=report.get("failureCode"),
            raw=report,
        )

    async def _start(self, *arguments: str) -> ChildProcess:
        check_system()
        env = render_child_env(self._options, os.environ)
        program = await find_or_install_cli(self._options.cli, env)
        argv, cwd = [program, *arguments], self._options.cwd
        directory = None if cwd is None else os.fspath(cwd)
        try:
            return spawn(argv, env=env, cwd=directory, ends_detached=True)
        except (OSError, ValueError) as error:
            typed = await run_blocking(make_start_error, error, argv, env, directory)
        raise typed  # outside of `except`: the original error may contain arguments


async def _communicate(child: ChildProcess, content: bytes) -> tuple[ExitStatus, bytes, bytes]:
    """Write to a child; return how it has exited, its output, and its standard error."""
    status, output, errors = ExitStatus(), bytearray(), bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_drain, child.stdout, output)
        tasks.start_soon(_drain, child.stderr, errors)
        with contextlib.suppress(anyio.BrokenResourceError):  # it has exited: its error says why
            await child.stdin.write(content)
        await child.stdin.end()
        status = await child.wait()
        child.finish_streams()
    return status, bytes(output), bytes(errors)


async def _drain(stream: PipeReader, into: bytearray) -> None:
    while data := await stream.read():
        into += data


async def _end(child: ChildProcess) -> None:
    """End a child and what it has started: SIGTERM, `ABANDON_GRACE_SECONDS`, SIGKILL."""
    try:
        with anyio.CancelScope(shield=True):
            for number in (signal.SIGTERM, KILL):
                if child.poll() is None:
                    child.signal(number)
                    with anyio.move_on_after(ABANDON_GRACE_SECONDS):
                        await child.wait()
            await child.release()
    finally:
        child.abandon()  # no effect if it was released


def _render_flags(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value:
            yield f"{flag}={value}"


def _decode(output: bytes) -> Any:
    """Return the JSON of an output; of several lines that are not JSON as a whole, that of the last one."""
    for text in (output, output.strip().rpartition(b"\n")[2]):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None
