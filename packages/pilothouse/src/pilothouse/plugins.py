"""Plugins and marketplaces of Claude Code: lists them and changes them with `claude plugin`.

Runs the same executable, in the same directory and environment, as a child with these options. Sessions that run take
over changes with `session.settings.reload_plugins()`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

import anyio
import msgspec
from msgspec import field

from pilothouse.client.controls import CamelControlResult, to_result, to_results
from pilothouse.errors import ControlTimeout, PluginError, UsageError
from pilothouse.options import Options
from pilothouse.options.renderer import render_child_env
from pilothouse.options.secrets import mask
from pilothouse.transports.discovery import find_or_install_cli

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

        plugins = Plugins(cwd="project")
        await plugins.add_marketplace("acme/plugins")
        await plugins.install("review@acme", scope="project")

    Each call runs `claude plugin` once, and raises `PluginError` if that fails, `ControlTimeout` if it takes too long,
    and `CLINotFoundError`. A plugin may bring hooks and MCP servers, which run as you: install those that you trust.

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
        body = await self._read("list", "--json", "--available")
        return to_results(AvailablePlugin, body["available"])

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
            config: values of options that the plugin declares.
            accept_command: the digest of a command that the marketplace runs to install the plugin, from
                `PluginError.raw["shownCommand"]["sha256"]`: show the command to a person first. Default: none is run.
        """
        flags = {"scope": scope, "config": [f"{name}={value}" for name, value in (config or {}).items()]}
        return await self._change("install", plugin, **flags, accept_command=accept_command)

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

    async def _read(self, *arguments: str) -> Any:
        """Run `claude plugin`, and return what it prints; raises if it reports a failure."""
        env = render_child_env(self._options, os.environ)
        program = await find_or_install_cli(self._options.cli, env)
        command = " ".join(["plugin", *(word for word in arguments[:2] if not word.startswith("-"))])
        try:
            with anyio.fail_after(self._timeout):
                done = await anyio.run_process(
                    [program, "plugin", *arguments],
                    stdin=subprocess.DEVNULL,
                    cwd=self._options.cwd,
                    env=env,
                    check=False,
                )
        except TimeoutError:
            raise ControlTimeout(f"`claude {command}` took longer than {self._timeout:g} s", subtype=command) from None
        body = _decode(done.stdout)
        if done.returncode == 0 and body is not None:
            return body
        report: Mapping[str, Any] = cast("Mapping[str, Any]", body) if isinstance(body, dict) else {}
        reason = str(report.get("message") or done.stderr.decode(errors="replace").strip() or "no output")
        raise PluginError(
            f"`claude {command}` failed with exit code {done.returncode}: {mask(reason)}",
            code=report.get("failureCode"),
            raw=report,
        )


def _render_flags(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value:
            yield from (f"{flag}={each}" for each in ([value] if isinstance(value, str) else value))


def _decode(output: bytes) -> Any:
    """Return the JSON of an output; of several lines that are not JSON as a whole, that of the last one."""
    for text in (output, output.strip().rpartition(b"\n")[2]):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None
