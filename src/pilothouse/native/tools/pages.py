"""HTML as plain text that a model reads well. Pure, and linear in the length of the page, whatever is in it."""

from __future__ import annotations

import html
import re

DROPPED = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "dd",
        "div",
        "dl",
        "dt",
        "figure",
        "footer",
        "form",
        "header",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "thead",
        "tr",
        "ul",
    ]
)
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9-]*)")
_LINK = re.compile(r"""\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE)
LONGEST_TAG = 10_000


def page_text(page: str) -> str:
    """The text of an HTML page: headings, paragraphs, items and links; no scripts and styles."""
    pieces: list[str] = []
    links: list[str] = []
    lower = page.lower()
    at = 0
    while at < len(page):
        start = page.find("<", at)
        if start < 0:
            pieces.append(html.unescape(page[at:]))
            break
        pieces.append(html.unescape(page[at:start]))
        if page.startswith("<!--", start):
            at = _behind(page, "-->", start + 4)
            continue
        name = _NAME.match(page, start + 1)
        if name is None:
            if page.startswith(("<!", "<?"), start):
                at = _behind(page, ">", start)
            else:
                pieces.append("<")
                at = start + 1
            continue
        at = _behind(page, ">", start)
        closing, tag = page[start + 1] == "/", name[1].lower()
        if tag in DROPPED and not closing:
            end = lower.find(f"</{tag}", at)
            at = len(page) if end < 0 else end
            continue
        pieces.append(_mark(tag, page[start : min(at, start + LONGEST_TAG)], links, closing=closing))
    return _tidy("".join(pieces))


def _behind(page: str, mark: str, start: int) -> int:
    end = page.find(mark, start)
    return len(page) if end < 0 else end + len(mark)


def _mark(tag: str, written: str, links: list[str], *, closing: bool) -> str:
    """What stands in the text for a tag."""
    if tag == "a":
        if closing:
            target = links.pop() if links else ""
            return f"]({target})" if target else ""
        found = _LINK.search(written)
        target = html.unescape(next(filter(None, found.groups()), "")) if found else ""
        links.append("" if target.startswith(("#", "javascript:")) else target)
        return "[" if links[-1] else ""
    if tag in HEADINGS:
        return "\n\n" if closing else f"\n\n{HEADINGS[tag]}"
    if tag == "li":
        return "" if closing else "\n- "
    if tag == "br":
        return "\n"
    if tag in {"td", "th"}:
        return " | " if closing else " "
    if tag == "title":
        return "\n\n" if closing else ""
    return "\n\n" if tag in BLOCKS else ""


def _tidy(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.split("\n")]
    kept = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return "\n".join(kept).strip()
