"""axe-core finds no fault on any page; it comes from npm, pinned by its digest, into the cache."""

from __future__ import annotations

from typing import Any

from npm_packages import fetch_package
from playwright.sync_api import Page

AXE = ("axe-core", "4.14.1")


def find_violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is now."""
    source = (fetch_package(*AXE) / "axe.min.js").read_text("utf-8")
    # Evaluated by the debugger, which the policy of the page does not bind.
    page.evaluate(f"(() => {{ {source} }})()") if not page.evaluate("Boolean(window.axe)") else None
    found: Any = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{fault['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for fault in found["violations"]
        for node in fault["nodes"][:3]
    ]
