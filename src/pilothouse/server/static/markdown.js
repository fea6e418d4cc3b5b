/** Markdown of a model as elements. Nothing in it runs, loads or leaves: HTML is shown as text, pictures as their names. */

import "./vendor/purify.js";
import { Marked } from "./vendor/marked.js";
import { html, useLayoutEffect, useRef } from "./vendor/htm-preact.js";

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

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => ref.current?.replaceChildren(renderMarkdown(text)), [text]);
  return html`<div class="markdown" ref=${ref}></div>`;
}
