"""Builds the site: the pages beside this file, the API from docstrings, an offline search, `llms.txt`, `llms-full.txt`.

python docs/build_site.py            # into build/site/; open index.html there

Does nothing when everything is as it was. Ends with 1 when a link is dead, a page has no place in `PARTS`, or a public
name has no entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from api_text import make_api_text
from error_texts import make_page
from public_names import PUBLIC_MODULES, list_names

import pilothouse
from pilothouse.hints import CORE_MODULES

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCE = ROOT / "build" / "site-source"
THEME = ROOT / "build" / "site-theme"
SITE = ROOT / "build" / "site"
BUILT_FROM = SITE / ".built-from"
"""Holds the digest of what the site was built from."""
# The parts of the site, the groups in them, and the pages of each; a group without a name is always open. A directory
# stands for the pages in it, `index.md` first.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Start": {
        "": ("index.md", "cli-and-keys.md", "programs.md"),
        "Tutorial": ("tutorial",),
        "Moving here": ("coming-from.md", "drop-in.md"),
    },
    "Guides": {
        "": ("guides/index.md",),
        "Build": (
            "guides/web-services.md",
            "guides/chat-bots.md",
            "guides/notebooks.md",
            "guides/ci-jobs.md",
            "guides/batch-work.md",
            "guides/own-tools.md",
            "guides/long-running-sessions.md",
            "guides/logins.md",
        ),
        "Control": (
            "guides/least-privilege.md",
            "guides/costs-and-budgets.md",
            "guides/cache-doctor.md",
            "guides/testing-your-agent.md",
            "guides/comparing-agents.md",
        ),
        "Operate": (
            "guides/deployment.md",
            "guides/many-machines.md",
            "guides/logs-traces-metrics.md",
            "guides/troubleshooting.md",
        ),
    },
    "Reference": {
        "Ask": (
            "asking.md",
            "structured-output.md",
            "blocking.md",
            "retries-and-timeouts.md",
            "errors.md",
            "messages.md",
        ),
        "Talk": ("sessions.md", "warm-children.md", "transcripts.md", "chat.md"),
        "Decide": ("permissions.md", "hooks.md", "policy.md"),
        "Extend": ("tools.md", "tool-bridges.md", "middleware.md"),
        "Connect": (
            "console.md",
            "front-ends.md",
            "editors.md",
            "endpoints.md",
            "frameworks.md",
            "language-model.md",
        ),
        "Run elsewhere": (
            "elsewhere.md",
            "host.md",
            "host-promises.md",
            "remote.md",
            "stores.md",
            "fleet.md",
            "durable.md",
            "native.md",
        ),
        "Test and watch": ("testing.md", "recording.md", "local.md", "observability.md"),
        "Look up": ("options.md", "command.md", "names.md", "error-texts.md"),
    },
    "API": {},
    "Understand": {
        "": ("design.md", "reliability.md", "stability.md", "speed.md", "benchmarks.md"),
    },
    "Project": {
        "": ("changelog.md", "contributing.md", "security.md"),
        "Architecture": ("architecture.md", "packages.md", "invariants.md", "glossary.md"),
        "Decisions": ("decisions",),
    },
}
# What a page outside of this directory is called in the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
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
extra_css = ["assets/style.css"]
nav = {nav}

[project.theme]
custom_dir = {theme}
favicon = "assets/wheel.svg"
font = false
icon.logo = "wheel"
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.tabs", "navigation.top",
  "navigation.tracking", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
primary = "custom"
accent = "custom"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
primary = "custom"
accent = "custom"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.markdown_extensions]
md_in_html = {{}}
pymdownx.blocks.tab = {{ alternate_style = true }}
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
line_length = 80
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
_RECORDING = re.compile(r'(<img [^>]*?src="([^"]*terminal-\w+)\.svg"[^>]*>)')
STILL_TOO = r'<picture><source media="(prefers-reduced-motion: reduce)" srcset="\2-still.svg">\1</picture>'
_ELSEWHERE = re.compile(r"""<(?!a\b)[a-z]+\b[^>]*?\s(?:href|src|srcset|poster|data)=["']?(?:https?:)?//""")
_STYLE_ELSEWHERE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")
_TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- end of tabs -->", re.DOTALL)
_TAB = re.compile(r"\*\*(.+?)\*\*\n\n(```.*?^```)\n", re.DOTALL | re.MULTILINE)
FRONT_PAGE = """\
---
hide: [navigation, toc]
---

<div class="front" markdown="1">

{text}
</div>
"""
LOGO_COLOUR = "#0e7490"


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


def make_tabs(text: str) -> str:
    """Show blocks of code, each below its name, as tabs."""
    return _TABS.sub(lambda match: _TAB.sub(r"/// tab | \1\n\n\2\n\n///\n", match[1]), text)


def write_pages() -> None:
    """Bring all pages together."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in sorted(HERE.rglob("*")):
        if path.suffix in {".md", ".svg", ".png", ".css"} and "programs" not in path.relative_to(HERE).parts[:1]:
            copy(path, path.relative_to(HERE).as_posix())
    for place, there in OUTSIDE.items():
        copy(ROOT / place, there)
    (SOURCE / "error-texts.md").write_text(make_page(), "utf-8")
    for module in ("pilothouse", *PUBLIC_MODULES):
        write_api(module)


def write_logo() -> None:
    """Put the wheel where the theme finds its icons, and as the icon of the site."""
    wheel = (HERE / "assets" / "wheel.svg").read_text("utf-8")
    icons = THEME / ".icons"
    icons.mkdir(parents=True, exist_ok=True)
    # The theme fills icons, except those of the set that it brings.
    (icons / "wheel.svg").write_text(wheel.replace("<svg ", '<svg class="lucide" ', 1), "utf-8")
    (SOURCE / "assets" / "wheel.svg").write_text(wheel.replace("currentColor", LOGO_COLOUR), "utf-8")


def copy(path: Path, there: str) -> None:
    target = SOURCE / there
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        text = make_tabs(link_pages(path.read_text("utf-8"), path.relative_to(ROOT).as_posix()))
        target.write_text(FRONT_PAGE.format(text=text) if there == "index.md" else text, "utf-8")
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
    match = re.search(r"^# (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return match[1].strip() if match else page.stem


def list_pages(places: tuple[str, ...]) -> Iterator[str]:
    """The pages of a group that are there."""
    for place in places:
        path = SOURCE / place
        if path.is_dir():
            pages = sorted(path.glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
            yield from (page.relative_to(SOURCE).as_posix() for page in pages)
        elif path.exists():
            yield place


def list_parts() -> dict[str, dict[str, list[str]]]:
    """The parts, their groups, and the pages of each; the pages of the API are those of the public modules."""
    api = {
        "pilothouse": ("pilothouse", *(module for module in PUBLIC_MODULES if module in CORE_MODULES)),
        "Packages": tuple(module for module in PUBLIC_MODULES if module not in CORE_MODULES),
    }
    groups = {**PARTS, "API": {group: tuple(map(name_api_page, modules)) for group, modules in api.items()}}
    return {
        part: {group: list(list_pages(places)) for group, places in named.items()} for part, named in groups.items()
    }


def make_nav() -> str:
    """The navigation, as TOML."""
    parts: list[str] = []
    for part, groups in list_parts().items():
        rows: list[str] = []
        for group, pages in groups.items():
            entries = [f"{{ {json.dumps(find_title(SOURCE / page))} = {json.dumps(page)} }}" for page in pages]
            rows += [f"{{ {json.dumps(group)} = [{', '.join(entries)}] }}"] if group else entries
        parts.append(f'{{ "{part}" = [{", ".join(rows)}] }}')
    return f"[{', '.join(parts)}]"


def requests_elsewhere(text: str) -> bool:
    """Whether a browser that shows this page or style requests something from another server."""
    return bool(_ELSEWHERE.search(text) or _STYLE_ELSEWHERE.search(text))


def find_gaps() -> Iterator[str]:
    """Pages without a place, and public names without an entry in the site."""
    placed = {page for groups in list_parts().values() for pages in groups.values() for page in pages}
    for path in SOURCE.rglob("*.md"):
        if (page := path.relative_to(SOURCE).as_posix()) not in placed:
            yield f"{page} has no place in PARTS"
    for path in (*SITE.rglob("*.html"), *SITE.rglob("*.css")):
        if requests_elsewhere(path.read_text("utf-8")):
            yield f"{path.relative_to(SITE)} requests something from elsewhere"
    for module in ("pilothouse", *PUBLIC_MODULES):
        page = (SITE / name_api_page(module)).with_suffix(".html")
        shown = set(re.findall(r'id="(pilothouse[\w.]*)"', page.read_text("utf-8")))
        yield from (f"{module}.{name} has no entry" for name in public_names(module) if f"{module}.{name}" not in shown)


def write_twins() -> None:
    """Put the Markdown of each page beside it, the list of all into `llms.txt`, and all pages into `llms-full.txt`."""
    texts: list[str] = []
    lines = ["# pilothouse", "", "> Steer Claude Code, the claude command-line agent, from Python."]
    for part, groups in list_parts().items():
        for group, pages in groups.items():
            lines += ["", f"## {part}: {group}" if group else f"## {part}", ""]
            for page in pages:
                target = SITE / page
                target.parent.mkdir(parents=True, exist_ok=True)
                text = (SOURCE / page).read_text("utf-8")
                if page == "index.md":
                    text = link_pages((HERE / page).read_text("utf-8"), f"docs/{page}")
                target.write_text(text, "utf-8")
                lines.append(f"- [{find_title(SOURCE / page)}]({page})")
                texts.append(f"<!-- {page} -->\n\n{text.strip()}\n")
    for module in ("pilothouse", *PUBLIC_MODULES):  # what those pages have is made by the generator of the site
        (SITE / name_api_page(module)).write_text(make_api_text(module, public_names(module)), "utf-8")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (SITE / "llms-full.txt").write_text("\n".join(texts), "utf-8")


def replace_scripts() -> None:
    """Search with `search.js`, and without a server by a script of the site itself: nothing comes from elsewhere."""
    shutil.copytree(HERE / "assets", SITE / "assets", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.svg"))
    [worker] = SITE.glob("assets/javascripts/workers/search.*.js")
    worker.write_text(make_search_script(), "utf-8")
    for page in SITE.rglob("*.html"):
        there = os.path.relpath(SITE / "assets" / "iframe-worker.js", page.parent)
        text = page.read_text("utf-8").replace(WORKER_ADDRESS, there)
        page.write_text(_RECORDING.sub(STILL_TOO, text), "utf-8")
    for recording in SITE.glob("terminal-*.svg"):
        still = stop_motion(recording.read_text("utf-8"))
        recording.with_stem(f"{recording.stem}-still").write_text(still, "utf-8")


def stop_motion(picture: str) -> str:
    """The last frame of a recording: browsers do not tell a picture that its reader wants no motion."""
    return re.sub(r"@media \(prefers-reduced-motion.*(?=</style>)", "", picture, flags=re.DOTALL)


def make_search_script() -> str:
    """The search in one file: it has to run where no module can be loaded."""
    return "\n".join((HERE / "assets" / name).read_text("utf-8") for name in ("minisearch.js", "search.js"))


def render() -> str:
    """Make HTML of the pages; gives what is wrong with them."""
    config = SOURCE.parent / "zensical.toml"
    sources = sorted(ROOT.glob("packages/*/src"))
    config.write_text(
        CONFIG.format(
            nav=make_nav(),
            theme=json.dumps(str(THEME)),
            sources=json.dumps([str(path) for path in sources]),
            packages=json.dumps([path.name for source in sources for path in source.iterdir()]),
            extension=HERE / "docstrings.py",
        ),
        "utf-8",
    )
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr) if done.returncode else ""


def find_digest() -> str:
    """What changes when the site has to be built again."""
    whole = hashlib.sha256()
    stamp = Path(sys.prefix) / "dev.stamp"  # written when the environment is installed
    whole.update(str(stamp.stat().st_mtime_ns if stamp.exists() else 0).encode())
    files = [*HERE.rglob("*"), *ROOT.glob("packages/*/src/**/*.py"), *(ROOT / place for place in OUTSIDE)]
    for path in sorted(path for path in files if path.is_file() and "__pycache__" not in path.parts):
        whole.update(f"\0{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def build() -> list[str]:
    """Build the site, and say what is being done; gives what is wrong with it."""
    begin = time.monotonic()

    def say(step: str) -> None:
        print(f"{time.monotonic() - begin:5.1f} s  {step}", flush=True)

    digest = find_digest()
    if BUILT_FROM.exists() and BUILT_FROM.read_text() == digest:
        say("nothing has changed")
        return []
    say("collecting the pages")
    write_pages()
    write_logo()
    count = sum(1 for _ in SOURCE.rglob("*.md"))
    say(f"rendering {count} pages, the API among them: about 20 s, more on a busy machine")
    if faults := render():
        return [faults]
    say("search, llms.txt and llms-full.txt")
    replace_scripts()
    write_twins()
    say("looking for gaps")
    gaps = list(find_gaps())
    if not gaps:
        BUILT_FROM.write_text(digest)
    say("done")
    return gaps


if __name__ == "__main__":
    gaps = build()
    print("\n".join(gaps) or f"the site is in {SITE.relative_to(Path.cwd())}/; open index.html")
    sys.exit(bool(gaps))
