"""The pages say what is so: code runs, commands parse, links lead somewhere, tables are fresh."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
import pytest
from markdown_pages import DOCS, PAGES, ROOT, Block, blocks, name_page, prose
from public_names import PUBLIC_MODULES, list_names

import pilothouse as ph
from pilothouse.options import TABLE
from pilothouse.provision.pinned_files import model_path
from pilothouse_cli.arguments import parse
from pilothouse_native.flags import parse_arguments as read_flags
from pilothouse_testing import FakeCLI, RecordedRequest, ScriptedModel, ToolUse, frames

README = ROOT / "README.md"
NAMES_WITHOUT_PAGE = 70
"""Public names that only the API reference explains; they must not become more."""
STRUCTURED = {"number": "7", "lines": [{"what": "rope", "price": 12.5}]}
PNG = b"\x89PNG\r\n\x1a\n"


NAMES = [name_page(page) for page in PAGES]


class Invoice(msgspec.Struct):
    """README.md uses it, and `show`, without saying what they are."""

    number: str


@pytest.fixture(autouse=True)
def _levels_kept() -> Iterator[None]:
    """The pages show how to hear more; other tests do not want to."""
    levels = {name: logging.getLogger(name).level for name in ("pilothouse", *logging.root.manager.loggerDict)}
    yield
    for name in (*levels, *logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the pages speak of, and an agent without settings."""
    (tmp_path / "app" / "models").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    for name in ("app.py", "README.md", "invoice.txt", "question.txt"):
        (tmp_path / name).write_text("ahoy\n")
    (tmp_path / "pilothouse.toml").write_text('model = "opus"\n')
    (tmp_path / "invoice.schema.json").write_text('{"type": "object"}')
    (tmp_path / "chart.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pilothouse.client.agent._default", ph.Agent())
    return tmp_path


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of one page share; a module, so that its classes have a home."""
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(anyio=anyio, asyncio=asyncio, ph=ph, show=list[ph.Message]().append, Invoice=Invoice)
    return vars(module)


async def execute(block: Block, namespace: dict[str, Any]) -> None:
    code = block.compiled()
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            await cast("Awaitable[object]", eval(code, namespace))
        else:  # a thread, because it may start an event loop
            await anyio.to_thread.run_sync(exec, code, namespace)
    except Exception as error:
        error.add_note(f"in the block at {block.name}")
        raise


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
async def test_python_blocks_compile_and_run(
    page: Path, namespace: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.name == "local.md" and not model_path().exists():
        pytest.skip("the local model is not fetched: python -m pilothouse.provision cli model")
    *output, closing = frames.sample_messages()
    closing["structured_output"] = STRUCTURED
    with FakeCLI().turn(*output, closing).forever() as fake:
        monkeypatch.setenv("PILOTHOUSE_CLI", fake.path)
        for block in blocks(page, "python"):
            assert block.compiled()
            assert block.words <= {"no-run", "pytest"}, block.name
            if block.is_run:
                await execute(block, namespace)
    namespace.clear()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # examples leave stores open, of which Python 3.13 warns


@pytest.mark.sample(1)
@pytest.mark.real_cli
@pytest.mark.parametrize("number", [0, 1], ids=["async", "blocking"])
def test_the_first_examples_run_on_the_real_cli(
    real_cli: str,
    number: int,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedModel("None today.") as model:
        for name, value in model.env(PILOTHOUSE_CLI=real_cli).items():
            monkeypatch.setenv(name, value)
        exec(blocks(README, "python")[number].compiled(), {"__name__": "__main__"})
        assert model.requests[0].last_user_text == "Find bugs in app/models"
    text, _, cost = capsys.readouterr().out.rpartition(" ")
    assert text == "None today."
    assert 0 < float(cost) < 0.01


def answer_of_asking(request: RecordedRequest) -> Any:
    return ToolUse("StructuredOutput", STRUCTURED) if "StructuredOutput" in request.tools else "Fine."


@pytest.mark.real_cli
def test_the_page_on_asking_holds_on_the_real_cli(
    real_cli: str, namespace: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block, with what it asserts: the fake CLI does not say all that the real one says."""
    with ScriptedModel() as model:
        model.default = answer_of_asking
        for name, value in model.env(PILOTHOUSE_CLI=real_cli).items():
            monkeypatch.setenv(name, value)
        for block in blocks(DOCS / "asking.md", "python"):
            if block.is_run:
                anyio.run(execute, block, namespace)
        assert len(model.requests) >= 15


@pytest.mark.real_cli
def test_test_blocks_pass(real_cli: str, tmp_path: Path) -> None:
    tests = [block for page in PAGES for block in blocks(page, "python") if block.is_pytest]
    assert {block.page.name for block in tests} == {"README.md", "testing.md"}
    (tmp_path / "conftest.py").write_text("import pytest\nanyio_backend = pytest.fixture(lambda: 'asyncio')\n")
    for number, block in enumerate(tests):
        text = "import pytest\nimport pilothouse as ph\n" + block.text
        (tmp_path / f"test_block_{number}.py").write_text(text)
    plugins = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-W", "error", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PILOTHOUSE_CLI": real_cli},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- commands


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands in the shell blocks, each with the line that it stands on."""
    for block in blocks(page, "bash"):
        for line in block.text.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words = list(lexer)
            while words:
                end = next((i for i, word in enumerate(words) if word[0] in "|&;<>"), len(words))
                if words[:end]:
                    yield line, words[:end]
                redirects = words[end : end + 1] in (["<"], [">"])
                words = words[end + (2 if redirects else 1) :]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_right(page: Path, directory: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "packages" / "pilothouse" / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for line, words in commands(page):
        match words:
            case ["pilothouse", *arguments]:
                try:
                    assert parse(arguments)
                except SystemExit as ended:
                    pytest.fail(f"{page.name}: {line!r} is refused ({ended.code})")
            case ["pilothouse-agent", *arguments]:
                assert read_flags(arguments, ROOT), line
            case ["python", "-m", "pilothouse.provision", *parts]:
                assert set(parts) <= {"cli", "model"}, line
            case ["make", target]:
                assert f"\n{target}:" in makefile, line
            case ["pip", "install", "-r", "packages.txt", "-e", package]:  # not from an index, which old pips ask
                assert package == "packages/pilothouse[local]", line
            case ["pip", "install", package]:
                assert set(re.findall(r"\w+", package)[1:]) <= set(extras), line
            case _:
                assert words[0] in {"export", "git", "inspect", "jq", "npm"}, line


# --- prose


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name}: {link}"


def test_every_page_can_be_found_from_the_readme() -> None:
    seen, new = set[Path](), {README}
    while new:
        page = new.pop()
        seen.add(page)
        links = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", prose(page))
        new |= {path for link in links if (path := (page.parent / link).resolve()) in PAGES} - seen
    assert seen == set(PAGES)


def test_every_public_name_is_documented() -> None:
    words = set(re.findall(r"\w+", "\n".join(page.read_text("utf-8") for page in PAGES)))
    assert not set(ph.__all__) - words
    assert not set(list_names("pilothouse_testing")) - words
    public = {name for home in PUBLIC_MODULES if home != "pilothouse.instrumentation" for name in list_names(home)}
    assert len(public - words) <= NAMES_WITHOUT_PAGE, sorted(public - words)


# --- generated tables


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "reference.py"))


def test_generated_parts_are_fresh(reference: dict[str, Any]) -> None:
    found: list[str] = []
    for page in DOCS.rglob("*.md"):
        text = page.read_text("utf-8")
        assert reference["fresh"](text) == text, "run python docs/reference.py"
        found += re.findall(r"<!-- generated: (\w+) -->", text)
    assert sorted(found) == sorted(reference["PARTS"])


def test_a_changed_program_makes_its_page_stale(reference: dict[str, Any]) -> None:
    page = "Before\n<!-- program: tutorial/05_tool.py -->\nold\n<!-- end -->\nafter\n"
    new = reference["fresh"](page)
    program = (DOCS / "programs" / "tutorial" / "05_tool.py").read_text("utf-8")
    assert new.startswith(
        f"Before\n<!-- program: tutorial/05_tool.py -->\n```python no-run\n{program}```\n<!-- end -->"
    )
    assert new.endswith("\nafter\n")


@pytest.mark.requirement("E46")
def test_the_options_page_has_every_option(reference: dict[str, Any]) -> None:
    text = (DOCS / "options.md").read_text("utf-8")
    for option in TABLE.values():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{option.name}` |")]
        assert option.doc in row
        assert f"| {reference['value'](option)}" in row
        assert reference["default"](option) in row
    stale = text.replace("(`'auto'`)", "(`'global'`)")
    assert stale != text
    assert reference["fresh"](stale) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_starts_with_a_sentence(page: Path) -> None:
    title, _, rest = page.read_text("utf-8").partition("\n")
    assert title.startswith("# ")
    assert re.match(r"\n(?!```|[#|!<])\S.* ", rest), f"{page.name}: first say what the page is for"
