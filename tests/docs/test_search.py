"""The search of the site finds: what people ask leads to the right page, among the first three results."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import build_site
import pytest
from build_site import make_search_script
from markdown_pages import ROOT
from npm_packages import find_node

KEYS = ("cli-and-keys",)
PERMISSIONS = ("permissions", "policy", "tutorial/06-permissions")
QUESTIONS: dict[str, tuple[str, ...]] = {
    "stream text": ("asking", "tutorial/02-stream"),
    "test without key": ("guides/testing-your-agent", "testing", "tutorial/09-tests"),
    "claude not found": ("guides/troubleshooting", "cli-and-keys", "errors"),
    "langchain": ("frameworks",),
    "limit the cost": ("guides/costs-and-budgets", "tutorial/08-costs"),
    "function as tool": ("guides/own-tools", "tools", "tutorial/05-tool"),
    "resume a conversation tomorrow": ("guides/long-running-sessions", "sessions"),
    "use with threads": ("blocking", "sessions"),
    "proxy": ("cli-and-keys", "guides/troubleshooting"),
    "windows": ("stability", "guides/troubleshooting"),
    "system prompt": ("options", "sessions"),
    "block rm -rf": ("hooks", *PERMISSIONS),
    "permission callback": PERMISSIONS,
    "how do I set the api key": KEYS,
    "jupyter event loop is already running": ("guides/notebooks",),
    "which python versions": ("stability",),
    "client disconnects": ("guides/web-services", "frameworks"),
    "timeout": ("retries-and-timeouts",),
    "cancel a query": ("asking",),
    "send a picture": ("asking",),
    # not from a report
    "retry on rate limit": ("retries-and-timeouts",),
    "fork a session": ("sessions", "tutorial/04-session"),
    "docker": ("guides/deployment", "elsewhere"),
    "pydantic model as output": ("structured-output", "tutorial/07-typed-output"),
    "is it faster than claude-agent-sdk": ("speed",),
    "migrate from claude_agent_sdk": ("drop-in", "coming-from"),
    "run 1000 prompts": ("guides/batch-work", "fleet"),
    "opentelemetry traces": ("guides/logs-traces-metrics", "observability"),
    "zed editor": ("editors",),
    "offline model without network": ("local",),
    "login with my subscription": ("guides/logins", "cli-and-keys"),
    "approve tool calls in the browser": ("console",),
}
ASK = """
const { createContext, runInContext } = require("node:vm");
const { readFileSync } = require("node:fs");
const [script, index] = process.argv.slice(1, 3).map((path) => readFileSync(path, "utf-8"));
let answer;
const worker = { console, postMessage: (message) => { answer = message; } };
worker.self = worker;
runInContext(script, createContext(worker));
const { items, config } = JSON.parse(index);
worker.onmessage({ data: { type: 0, data: { items, config } } });
const found = JSON.parse(readFileSync(0, "utf-8")).map((query) => {
  worker.onmessage({ data: { type: 2, data: query } });
  return { ...answer.data, locations: answer.data.items.map(({ id }) => items[id].location) };
});
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is now: the one that is built, unless something has changed."""
    digest = build_site.find_digest()
    if build_site.BUILT_FROM.exists() and build_site.BUILT_FROM.read_text() == digest:
        return build_site.SITE
    place = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        for name, path in (("SOURCE", "site-source"), ("THEME", "theme"), ("SITE", "site"), ("BUILT_FROM", "digest")):
            patch.setattr(build_site, name, place / path)
        assert build_site.build() == []
    return place / "site"


def ask(index: Path, directory: Path, *queries: dict[str, Any]) -> list[dict[str, Any]]:
    """What the worker of the search answers to each query."""
    script = directory / "search.js"
    script.write_text(make_search_script(), "utf-8")
    command = [find_node()[0], "-e", ASK, str(script), str(index)]
    done = subprocess.run(command, input=json.dumps(queries), capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@pytest.mark.matrix
def test_questions_lead_to_the_right_page(site: Path, tmp_path: Path) -> None:
    answers = ask(site / "search.json", tmp_path, *({"input": question} for question in QUESTIONS))
    wrong: dict[str, list[str]] = {}
    for (question, pages), answer in zip(QUESTIONS.items(), answers, strict=True):
        first = [location.partition(".html")[0] for location in answer["locations"][:3]]
        if not set(pages) & set(first):
            wrong[question] = first
    assert wrong == {}


SECTIONS = {
    "config": {},
    "items": [
        {
            "location": "keys.html#a",
            "title": "Keys",
            "text": "<p>Set the key &amp; go.</p>",
            "path": ["Guides", "Keys"],
        },
        {"location": "api.html#b", "title": "Options.key", "text": "<p>A key, a key.</p>", "path": ["API", "Options"]},
        {"location": "new.html#c", "title": "Pictures", "text": "<p>Send one.</p>", "path": ["Guides", "New"]},
        *(
            {"location": f"{n}.html", "title": "Stop", "text": "<p>stop</p>", "path": ["Guides", f"Page {n}"]}
            for n in range(12)
        ),
    ],
}


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    path = tmp_path / "search.json"
    path.write_text(json.dumps(SECTIONS))
    return path


def test_guides_come_before_the_api_and_stop_words_do_not_count(sections: Path, tmp_path: Path) -> None:
    [long, image, nothing] = ask(
        sections, tmp_path, {"input": "How do I set the keys?"}, {"input": "image"}, {"input": "how do I"}
    )
    assert long["locations"] == ["keys.html#a", "api.html#b"]
    assert image["locations"] == ["new.html#c"]
    assert nothing["items"] == []
    [title, text] = long["items"][0]["matches"]
    assert [title["field"], text["field"]] == ["title", "text"]
    html = SECTIONS["items"][0]["text"]
    marked = [html[found["start"] : found["end"]] for found in text["value"]["highlight"]["ranges"]]
    assert marked == ["key"]


def test_further_results_follow_page_by_page(sections: Path, tmp_path: Path) -> None:
    [first] = ask(sections, tmp_path, {"input": "cancel"})
    assert first["pagination"]["total"] == 12
    assert "prev" not in first["pagination"]
    _, rest = ask(sections, tmp_path, {"input": "cancel"}, {"input": "cancel", "page": first["pagination"]["next"]})
    assert len({*first["locations"], *rest["locations"]}) == 12
    assert "next" not in rest["pagination"]


@pytest.mark.parametrize("name", ["minisearch.js", "iframe-worker.js"])
def test_the_vendored_scripts_are_the_published_ones(name: str) -> None:
    head, _, code = (ROOT / "docs" / "assets" / name).read_bytes().partition(b" */\n")
    assert hashlib.sha256(code).hexdigest() in head.decode()
    assert (ROOT / "docs" / "assets" / name).with_suffix(".LICENSE").exists()
