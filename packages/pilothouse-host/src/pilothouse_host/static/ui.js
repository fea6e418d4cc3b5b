/** Small things that all pages use: long texts, what fails, icons, times, dialogs, keys. */

import { reveal, toText } from "./text.js";
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

const MAX_SHOWN = 6000;

/**
 * The start of a long text, and a button for the rest of it.
 * @param {string} text @returns {[string, any]}
 */
export function useCut(text) {
  const [all, setAll] = useState(false);
  if (all || text.length <= MAX_SHOWN) return [text, null];
  return [text.slice(0, MAX_SHOWN), html`<button class="small more" onClick=${() => setAll(true)}>Show all ${text.length.toLocaleString()} characters</button>`];
}

/** Text as it is, with its blanks and lines. @param {{text: unknown, label: string, prose?: boolean}} props */
export function Code({ text, label, prose = false }) {
  const whole = toText(text);
  const [shown, more] = useCut(whole);
  return html`<div class="code-box"><pre class=${prose ? "prose" : ""} tabindex="0" role="region" aria-label=${label}>${reveal(shown)}</pre><${Copy} text=${() => reveal(whole)} />${more}</div>`;
}

/**
 * Draws a part of a page. If that fails, a note and the data stand in its place, and the rest of the page lives on. A new
 * version of the part is tried again.
 * @extends {Component<{what: string, version?: unknown, data?: () => unknown, actions?: any, children?: any}, {error: any, version: unknown}>}
 */
export class Boundary extends Component {
  /** @param {unknown} error */
  static getDerivedStateFromError(error) {
    return { error: error ?? "unknown" };
  }

  /** @param {{version?: unknown}} props @param {{error?: any, version?: unknown}} state */
  static getDerivedStateFromProps({ version }, state) {
    return state.version === version ? null : { error: null, version };
  }

  /** @param {{what: string, data?: () => unknown, actions?: any, children?: any}} props @param {{error: any}} state */
  render({ what, data, actions, children }, { error }) {
    if (!error) return children;
    return html`<div class="broken"><p class="notice error" role="alert">The console cannot display this ${what}: ${String(error?.message ?? error)}</p>
      ${data && html`<${Code} text=${describeData(data)} label="Data" />`}${actions}</div>`;
  }
}

/** @param {() => unknown} data */
function describeData(data) {
  try {
    return toText(data());
  } catch (error) {
    return `The data cannot be displayed either: ${error}`;
  }
}

/** @type {Record<string, string>} paths of icons in a square of 16 */
const ICONS = {
  archive: "M2 3h12v3H2zM3 6v7h10V6M6.5 9h3",
  branch: "M4.5 5.5v5M4.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zm0 8a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zm7-7a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zm0 0c0 3-7 1.5-7 4",
  check: "M3 8.5l3.2 3L13 4.5",
  chevron: "M6 3.5L10.5 8 6 12.5",
  close: "M4 4l8 8M12 4l-8 8",
  coin: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8v6.4M9.8 6.2c-.3-.6-1-.9-1.8-.9-1 0-1.8.5-1.8 1.3 0 1.9 3.7.8 3.7 2.8 0 .8-.8 1.4-1.9 1.4-.9 0-1.6-.4-1.9-1",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  edit: "M3 13l.6-2.8L10.8 3l2.2 2.2-7.2 7.2z",
  file: "M4 2h5l3 3v9H4zM9 2v3h3",
  fleet: "M2.5 3h4v4h-4zM9.5 3h4v4h-4zM2.5 10h4v3.5h-4zM9.5 10h4v3.5h-4z",
  globe: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c2 2 2.5 4 2.5 6S10 12 8 14c-2-2-2.5-4-2.5-6S6 4 8 2z",
  inbox: "M2 9l2-6h8l2 6v4H2zM2 9h3.5l1 1.7h3l1-1.7H14",
  keyboard: "M1.5 4h13v8h-13zM4 6.7h.01M6.7 6.7h.01M9.3 6.7h.01M12 6.7h.01M5 9.5h6",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  plus: "M8 3v10M3 8h10",
  robot: "M3.5 6h9v7h-9zM8 3v3M6.3 9h.01M9.7 9h.01M1.8 9v2M14.2 9v2",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5L14 14",
  send: "M8 13V3M3.8 7L8 2.8 12.2 7",
  sessions: "M2.5 3.5h11v7h-6l-3 2.5v-2.5h-2z",
  shield: "M8 2l5 1.7v4c0 3.2-2.2 5.2-5 6.3-2.8-1.1-5-3.1-5-6.3v-4z",
  stop: "M4.5 4.5h7v7h-7z",
  terminal: "M2 3h12v10H2zM4.5 6l2 2-2 2M8.5 10.5h3",
  theme: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  tool: "M9.5 6.5L3 13M9 4a3 3 0 0 1 4-1.6L11 4.3 11.7 5l1.9-2A3 3 0 0 1 10 7z",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
};

/** @param {{name: string}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${ICONS[name] ?? ""} /></svg>`;
}

/** @typedef {"running" | "waiting" | "idle" | "failed" | "ended"} SessionState */

const STATE_WORDS = { running: "Running", waiting: "Waiting for you", idle: "Idle", failed: "Failed", ended: "Ended" };

/** @param {{state: SessionState}} props */
export function StateChip({ state }) {
  return html`<span class=${`chip state ${state}`}><i class="dot"></i>${STATE_WORDS[state]}</span>`;
}

/** @param {{icon: string, title: string, children?: any}} props */
export function Empty({ icon, title, children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2><div class="hint">${children}</div></div>`;
}

/** @param {{text: () => string}} props */
function Copy({ text }) {
  const [done, setDone] = useState(false);
  const copy = async (/** @type {Event} */ event) => {
    event.preventDefault();
    await navigator.clipboard?.writeText(text());
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button class="ghost small copy" onClick=${copy} aria-label="Copy" title="Copy">
    <${Icon} name=${done ? "check" : "copy"} />
  </button>`;
}

/**
 * A dialog over the page; Escape and a click beside it close it.
 * @param {{title: string, onClose: () => void, children?: any, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  const onClick = (/** @type {MouseEvent} */ event) => event.target === ref.current && onClose();
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-label=${title} onClick=${onClick}
    onCancel=${(/** @type {Event} */ event) => (event.preventDefault(), onClose())}>
    <header><h2>${title}</h2>
      <button class="ghost" onClick=${onClose} aria-label="Close"><${Icon} name="close" /></button></header>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

/** @type {Map<string, {label: string, group: string, run: () => void}[]>} */
const keys = new Map();

/** @param {EventTarget | null} target */
function isTyping(target) {
  if (target instanceof HTMLInputElement) return !/^(checkbox|radio)$/.test(target.type);
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Whether Enter has a meaning of its own there. @param {EventTarget | null} target */
function isPressable(target) {
  return target instanceof Element && Boolean(target.closest("a, button, summary"));
}

let pending = "";

document.addEventListener("keydown", (event) => {
  // A key that is held down must not settle what comes next.
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]") || event.key === "Shift") return;
  if (event.key === "Enter" && isPressable(event.target)) return;
  const pressed = pending ? `${pending} ${event.key}` : event.key;
  pending = [...keys.keys()].some((key) => key.startsWith(`${pressed} `)) ? pressed : "";
  const bound = keys.get(pressed)?.at(-1);
  if (!bound) return;
  event.preventDefault();
  pending = "";
  bound.run();
});

/**
 * Bind keys while a component is there; the newest binding of a key counts.
 * @param {string} group heading in the help
 * @param {Record<string, [string, () => void]>} table what each key does
 */
export function useKeys(group, table) {
  const current = useRef(table);
  current.current = table;
  // Before the browser shows the component, so that no key is lost.
  useLayoutEffect(() => {
    const bound = Object.entries(table).map(([key, [label]]) => {
      const entry = { label, group, run: () => current.current[key]?.[1]() };
      keys.set(key, [...(keys.get(key) ?? []), entry]);
      return { key, entry };
    });
    return () => {
      for (const { key, entry } of bound) keys.set(key, (keys.get(key) ?? []).filter((each) => each !== entry));
    };
  }, [Object.keys(table).join(" ")]);
}

/** @returns {[string, [string, string][]][]} groups of keys and what they do now */
export function listKeys() {
  /** @type {Map<string, [string, string][]>} */
  const groups = new Map();
  for (const [key, bound] of keys) {
    const entry = bound.at(-1);
    if (entry) groups.set(entry.group, [...(groups.get(entry.group) ?? []), [key, entry.label]]);
  }
  return [...groups];
}

/** @param {number} seconds since the epoch */
export function formatAge(seconds) {
  const age = Math.max(0, Date.now() / 1000 - seconds);
  if (age < 60) return "now";
  if (age < 3600) return `${Math.floor(age / 60)} min`;
  if (age < 86400) return `${Math.floor(age / 3600)} h`;
  if (age < 7 * 86400) return `${Math.floor(age / 86400)} d`;
  return new Date(seconds * 1000).toLocaleDateString();
}

/** @param {number | null | undefined} dollars */
export function formatCost(dollars) {
  if (dollars === null || dollars === undefined) return "";
  if (dollars <= 0 || dollars >= 0.01) return `$${dollars.toFixed(2)}`;
  return dollars < 0.0001 ? "< $0.0001" : `$${dollars.toPrecision(2)}`;
}

/** @param {number} count */
export function formatTokens(count) {
  if (count < 1000) return String(count);
  return count < 1e6 ? `${(count / 1000).toFixed(count < 1e4 ? 1 : 0)}k` : `${(count / 1e6).toFixed(1)}M`;
}

/** @param {number} ms */
export function formatDuration(ms) {
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** The last two parts of a path. @param {string} path */
export function shortPath(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : path;
}
