"""Plugins and marketplaces of the real CLI, from a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.errors import CLINotFoundError, ControlTimeout, PluginError, UsageError
from pilothouse.plugins import Plugins
from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


OPTIONS = {
    "api_token": {"type": "string", "title": "Token", "description": "Its key.", "sensitive": True},
    "level": {"type": "number", "title": "Level", "description": "How loud."},
}


@pytest.fixture
def options(claude: Any, model: ScriptedModel) -> ph.Options:
    return ph.Options(**claude.settings)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A marketplace with one plugin, which has a command."""
    for path, content in {
        ".claude-plugin/marketplace.json": json.dumps(
            {
                "name": "ours",
                "owner": {"name": "us"},
                "plugins": [{"name": "greet", "source": "./greet", "description": "Greets."}],
            }
        ),
        "greet/.claude-plugin/plugin.json": json.dumps({"name": "greet", "version": "1.0.0", "userConfig": OPTIONS}),
        "greet/commands/hello.md": "Say hello.",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


async def find(plugins: Plugins) -> list[tuple[str, bool]]:
    return [(plugin.version, plugin.enabled) for plugin in await plugins.list() if plugin.id == "greet@ours"]


async def test_a_plugin_from_a_marketplace(options: ph.Options, shop: Path, model: ScriptedModel) -> None:
    model.default = "hello"
    plugins = Plugins(options)
    assert await plugins.marketplaces() == []
    assert (await plugins.add_marketplace(str(shop))).marketplace == "ours"
    (market,) = await plugins.marketplaces()
    assert (market.name, market.source, market.install_location) == ("ours", "directory", str(shop))
    (offer,) = await plugins.available()
    assert (offer.id, offer.description, offer.marketplace_name) == ("greet@ours", "Greets.", "ours")
    made = await plugins.install("greet@ours")
    assert (made.plugin_id, made.scope) == ("greet@ours", "user")
    assert await find(plugins) == [("1.0.0", True)]
    async with ph.session(options) as session:
        assert "greet:hello" in [command.name for command in session.info.commands()]
    await plugins.disable("greet@ours", scope="user")
    assert await find(plugins) == [("1.0.0", False)]
    await plugins.enable("greet@ours", scope="user")
    (shop / "greet/.claude-plugin/plugin.json").write_text(json.dumps({"name": "greet", "version": "1.1.0"}))
    assert (await plugins.update_marketplace("ours")).marketplace == "ours"
    changed = await plugins.update("greet@ours")
    assert (changed.old_version, changed.new_version) == ("1.0.0", "1.1.0")
    await plugins.uninstall("greet@ours", keep_data=True)
    assert await find(plugins) == []
    await plugins.remove_marketplace("ours")
    assert await plugins.marketplaces() == []


async def test_a_change_of_the_project_is_in_its_settings(options: ph.Options, claude: Any, shop: Path) -> None:
    plugins = Plugins(options)
    await plugins.add_marketplace(str(shop), scope="project")
    await plugins.install("greet@ours", scope="project")
    settings = json.loads((claude.cwd / ".claude" / "settings.json").read_text())
    assert settings["enabledPlugins"] == {"greet@ours": True}
    assert not (claude.home / ".claude" / "settings.json").exists()


async def test_a_failure_says_what_the_cli_says(options: ph.Options) -> None:
    plugins = Plugins(options)
    with pytest.raises(PluginError, match="`claude plugin marketplace add` failed with exit code 1") as error:
        await plugins.add_marketplace("/nowhere")
    assert error.value.code == "invalid_source"
    assert error.value.raw["outcome"] == "failed"
    with pytest.raises(PluginError, match="not found"):
        await plugins.install("--help")  # a name, not a flag


async def test_values_of_its_options_are_not_arguments(
    options: ph.Options, claude: Any, shop: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "claude"
    seen.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexec {claude.path} "$@"\n')
    seen.chmod(0o700)
    plugins = Plugins(options.merge(ph.Options(cli=seen)))
    await plugins.add_marketplace(str(shop))
    made = await plugins.install("greet@ours", config={"api_token": "a-key", "level": "5"})
    assert made.plugin_id == "greet@ours"
    kept = json.loads((claude.home / ".claude" / "settings.json").read_text())["pluginConfigs"]["greet@ours"]
    assert kept["options"] == {"level": 5}
    assert "a-key" in (claude.home / ".claude" / ".credentials.json").read_text()
    assert "a-key" not in (tmp_path / "arguments").read_text()
    with pytest.raises(PluginError, match="It takes a number"):
        await plugins.install("greet@ours", config={"level": "loud"})


async def test_what_cannot_be_run(options: ph.Options, claude: Any, tmp_path: Path) -> None:
    with pytest.raises(CLINotFoundError):
        await Plugins(options.merge(ph.Options(cli="/nowhere/claude"))).list()
    slow = tmp_path / "claude"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    with pytest.raises(ControlTimeout, match="`claude plugin list` took longer than"):
        await Plugins(options.merge(ph.Options(cli=slow)), timeout=0.2).list()
    with pytest.raises(UsageError, match="'isolation'"):
        Plugins(ph.Options(isolation="strict"))
