/** Markdown of a model as elements. Nothing in it runs, loads or leaves: HTML is shown as text, pictures as their names. */

import "./vendor/purify.js";
import { Marked } from "./vendor/marked.js";
import { Code } from "./ui.js";
import { html, useLayoutEffect, useMemo, useRef } from "./vendor/htm-preact.js";

/** @type {any} */
const purify = /** @type {any} */ (globalThis).DOMPurify;

/** @param {unknown} text */
function escape(text) {
  return String(text ?? "").replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
}

const marked = new Marked({
  gfm: true,
  renderer: {
    html: (/** @type {any} */ { text }) => escape(text),
    image: (/** @type {any} */ { href, text }) => `<code>${escape(text || "image")}: ${escape(href)}</code>`,
    checkbox: (/** @type {any} */ { checked }) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

const MAX_LENGTH = 50_000;
const MAX_NESTING = 20;
const MAX_EFFORT = 9e6;

/**
 * Whether the parser can take the text. It recurses into what is nested, and its time grows with the square of the lines
 * and of the marks of emphasis in a block, so that a text of a few kilobytes could stop the page.
 * @param {string} text
 */
export function isParsable(text) {
  if (text.length > MAX_LENGTH) return false;
  let effort = 0;
  let block = 0;
  for (const line of text.split("\n")) {
    if (countNesting(line) > MAX_NESTING) return false;
    if (line.trim()) {
      block += 1 + (line.match(/[*_~]/g)?.length ?? 0);
    } else {
      effort += block ** 2;
      block = 0;
    }
  }
  return effort + block ** 2 <= MAX_EFFORT;
}

/** How many quotes and lists a line may stand in: its own marks, and those that its indentation stands for. @param {string} line */
function countNesting(line) {
  const [prefix = ""] = /^(?:[ \t]|>|[-+*](?=\s|$)|\d{1,9}[.)](?=\s|$))*/.exec(line) ?? [];
  const marks = prefix.match(/[>+*.)-]/g)?.length ?? 0;
  return marks && marks + Math.floor((prefix.match(/[ \t]/g)?.length ?? 0) / 2);
}

/** @param {string} text @returns {DocumentFragment} */
export function renderMarkdown(text) {
  const fragment = purify.sanitize(marked.parse(text), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    link.title = link.getAttribute("href") ?? "";
  }
  for (const pre of fragment.querySelectorAll("pre")) pre.tabIndex = 0; // so that keys can scroll it
  // Headings of a model stand below those of the page.
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const replacement = document.createElement("p");
    replacement.className = `heading ${heading.tagName.toLowerCase()}`;
    replacement.append(...heading.childNodes);
    heading.replaceWith(replacement);
  }
  return fragment;
}

/** @param {string} text @returns {DocumentFragment | null} null: it can only be shown as it is */
function tryMarkdown(text) {
  try {
    return isParsable(text) ? renderMarkdown(text) : null;
  } catch {
    return null;
  }
}

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  const fragment = useMemo(() => tryMarkdown(text), [text]);
  useLayoutEffect(() => {
    if (fragment) ref.current?.replaceChildren(fragment);
  }, [fragment]);
  return fragment ? html`<div class="markdown" ref=${ref}></div>` : html`<${Code} text=${text} label="Text" prose />`;
}
