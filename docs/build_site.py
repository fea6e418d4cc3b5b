"""Builds the site: the pages beside this file, the API from docstrings, an offline search, `llms.txt`, `llms-full.txt`.

python docs/build_site.py            # into build/site/; open index.html there

Ends with 1 when a link is dead, a page has no place in `PARTS`, or a public name has no entry.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from api_text import make_api_text
from error_texts import make_page
from public_names import PUBLIC_MODULES, list_names

import pilothouse

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"
# The parts of the site and their pages. A directory stands for the pages in it, `index.md` first.
PARTS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "tutorial", "programs.md", "local.md", "cli-and-keys.md", "command.md", "chat.md"),
    "Guides": (
        "guides",
        "asking.md",
        "structured-output.md",
        "sessions.md",
        "permissions.md",
        "hooks.md",
        "tools.md",
        "tool-bridges.md",
        "policy.md",
        "retries-and-timeouts.md",
        "warm-children.md",
        "blocking.md",
        "middleware.md",
        "testing.md",
        "recording.md",
        "observability.md",
        "transcripts.md",
        "stores.md",
        "fleet.md",
        "durable.md",
        "elsewhere.md",
        "host.md",
        "host-promises.md",
        "remote.md",
        "console.md",
        "front-ends.md",
        "editors.md",
        "endpoints.md",
        "frameworks.md",
        "language-model.md",
        "native.md",
    ),
    "Understand": (
        "design.md",
        "reliability.md",
        "stability.md",
        "speed.md",
        "benchmarks/README.md",
    ),
    "Reference": (
        "options.md",
        "messages.md",
        "errors.md",
        "error-texts.md",
        "names.md",
        "api",
        "changelog.md",
        "security.md",
    ),
    "Moving here": ("coming-from.md", "drop-in.md"),
    "Contribute": ("contributing.md", "architecture.md", "packages.md", "invariants.md", "glossary.md", "decisions"),
}
# What a page outside of this directory is called in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "benchmarks/results.svg": "benchmarks/results.svg",
    "benchmarks/scale.svg": "benchmarks/scale.svg",
}
CONFIG = """\
[project]
site_name = "pilothouse"
site_description = "Steer Claude Code, the claude command-line agent, from Python"
docs_dir = "site-source"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.sections", "navigation.tabs",
  "navigation.top", "navigation.tracking", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.markdown_extensions]
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}

[project.plugins.search]
[project.plugins.offline]
[project.plugins.mkdocstrings.handlers.python]
paths = {sources}
[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
docstring_options = {{ warnings = false }}
extensions = ["{extension}"]
preload_modules = {packages}
docstring_section_style = "list"
merge_init_into_class = true
filters = ["!^_"]
heading_level = 2
members_order = "source"
separate_signature = true
show_if_no_docstring = true
show_root_heading = true
show_source = false
"""
WORKER_ADDRESS = "https://unpkg.com/iframe-worker/shim"
API_PAGE = """\
# {title}

{about}
{names}"""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)


def link_pages(text: str, place: str) -> str:
    """Let the links of the page at `place` in the repository lead to the pages of the site."""
    here = OUTSIDE.get(place, place.removeprefix("docs/"))

    def link(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups("")
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(place), target))  # noqa: PTH118, PTH120
        there = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if there is None or (not mark and not there.endswith((".md", ".svg", ".png"))):
            return words  # a file of the repository
        return f"{mark}[{words}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor})"  # noqa: PTH120

    return _FENCE.sub(r"\1", _LINK.sub(link, text))


def write_pages() -> None:
    """Bring all pages together."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in sorted(HERE.rglob("*")):
        if path.suffix in {".md", ".svg", ".png"} and "programs" not in path.relative_to(HERE).parts[:1]:
            copy(path, path.relative_to(HERE).as_posix())
    for place, there in OUTSIDE.items():
        copy(ROOT / place, there)
    (SOURCE / "error-texts.md").write_text(make_page(), "utf-8")
    for module in ("pilothouse", *PUBLIC_MODULES):
        write_api(module)


def copy(path: Path, there: str) -> None:
    target = SOURCE / there
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        target.write_text(link_pages(path.read_text("utf-8"), path.relative_to(ROOT).as_posix()), "utf-8")
    else:
        shutil.copy(path, target)


def public_names(module: str) -> list[str]:
    """The names that the page of a module explains: those that no page before it does."""
    root = list(vars(pilothouse)["__all__"])
    if module == "pilothouse":
        return [name for name in root if name != "__version__"]
    return [name for name in dict.fromkeys(list_names(module)) if name not in root]


def name_api_page(module: str) -> str:
    return f"api/{'index' if module == 'pilothouse' else module.replace('.', '-')}.md"


def write_api(module: str) -> None:
    about = "`import pilothouse as ph`" if module == "pilothouse" else f"`from {module} import …`"
    names = "".join(f"\n::: {module}.{name}\n" for name in public_names(module))
    page = SOURCE / name_api_page(module)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(API_PAGE.format(title=module, about=about, names=names), "utf-8")


def find_title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ").strip()


def list_pages(place: str) -> list[str]:
    """The pages of one entry of `PARTS` that are there."""
    path = SOURCE / place
    if path.is_dir():
        pages = sorted(path.glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
        return [page.relative_to(SOURCE).as_posix() for page in pages]
    return [place] if path.exists() else []


def make_nav() -> str:
    """The navigation, as TOML."""
    parts: list[str] = []
    for part, places in PARTS.items():
        rows: list[str] = []
        for place in places:
            pages = [
                f"{{ {json.dumps(find_title(SOURCE / page))} = {json.dumps(page)} }}" for page in list_pages(place)
            ]
            heading = {"tutorial": "Tutorial", "api": "API", "decisions": "Decisions"}.get(place)
            rows += [f"{{ {heading} = [{', '.join(pages)}] }}"] if heading and pages else pages
        parts.append(f'{{ "{part}" = [{", ".join(rows)}] }}')
    return f"[{', '.join(parts)}]"


def find_gaps() -> Iterator[str]:
    """Pages without a place, and public names without an entry in the site."""
    placed = {page for places in PARTS.values() for place in places for page in list_pages(place)}
    for path in SOURCE.rglob("*.md"):
        if (page := path.relative_to(SOURCE).as_posix()) not in placed:
            yield f"{page} has no place in PARTS"
    for module in ("pilothouse", *PUBLIC_MODULES):
        page = (SITE / name_api_page(module)).with_suffix(".html")
        shown = set(re.findall(r'id="(pilothouse[\w.]*)"', page.read_text("utf-8")))
        if re.search(r'<(script|link|img)[^>]*"https?://', page.read_text("utf-8")):
            yield f"{page.name} requests something from elsewhere"
        yield from (f"{module}.{name} has no entry" for name in public_names(module) if f"{module}.{name}" not in shown)


def write_twins() -> None:
    """Put the Markdown of each page beside it, the list of all into `llms.txt`, and all pages into `llms-full.txt`."""
    texts: list[str] = []
    lines = ["# pilothouse", "", "> Steer Claude Code, the claude command-line agent, from Python."]
    for part, places in PARTS.items():
        lines += ["", f"## {part}", ""]
        for page in (page for place in places for page in list_pages(place)):
            target = SITE / page
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / page, target)
            lines.append(f"- [{find_title(SOURCE / page)}]({page})")
            texts.append(f"<!-- {page} -->\n\n{(SOURCE / page).read_text('utf-8').strip()}\n")
    for module in ("pilothouse", *PUBLIC_MODULES):  # what those pages have is made by the generator of the site
        (SITE / name_api_page(module)).write_text(make_api_text(module, public_names(module)), "utf-8")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (SITE / "llms-full.txt").write_text("\n".join(texts), "utf-8")


def replace_remote_scripts() -> None:
    """Take the script for searching without a server from the site itself; it requests nothing from elsewhere."""
    shutil.copytree(HERE / "assets", SITE / "assets", dirs_exist_ok=True)
    for page in SITE.rglob("*.html"):
        there = os.path.relpath(SITE / "assets" / "iframe-worker.js", page.parent)
        page.write_text(page.read_text("utf-8").replace(WORKER_ADDRESS, there), "utf-8")


def build() -> Iterable[str]:
    """Build the site; gives what is wrong with it."""
    write_pages()
    config = SOURCE.parent / "zensical.toml"
    sources = sorted(ROOT.glob("packages/*/src"))
    config.write_text(
        CONFIG.format(
            nav=make_nav(),
            sources=json.dumps([str(path) for path in sources]),
            packages=json.dumps([path.name for source in sources for path in source.iterdir()]),
            extension=HERE / "docstrings.py",
        ),
        "utf-8",
    )
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)]
    replace_remote_scripts()
    write_twins()
    return find_gaps()


if __name__ == "__main__":
    gaps = list(build())
    print("\n".join(gaps) or f"the site is in {SITE.relative_to(Path.cwd())}/; open index.html")
    sys.exit(bool(gaps))
