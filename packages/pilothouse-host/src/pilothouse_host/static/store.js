/** What all pages share: the sessions of the host and what waits for a person, as they change. */

import { ApiError, call, dropToken, follow } from "./api.js";
import { reveal } from "./text.js";
import { useLayoutEffect, useReducer } from "./vendor/htm-preact.js";

/** @typedef {{id: string, kind: string, state: string, created: number, start: any, conversation: string | null, asks?: number, waiting?: number, queued?: {id: string, title: string}[], steering?: {id: string, title: string}[], logins?: import("./logins.js").Login[], last_result?: any, error?: string | null, ending: any, output_bytes: number, available_from: number, owner: string | null}} Session */
/** @typedef {{id: string, kind: string, session: string, conversation: string | null, title: string, tool?: string, server?: string, asked_at: number, expires_at: number | null, request: any, restored: boolean, can_always_allow?: boolean, can_allow_for_minutes?: boolean}} Ask */

export const store = {
  /** @type {Map<string, Session>} */
  sessions: new Map(),
  /** @type {Map<string, Ask>} */
  asks: new Map(),
  /** @type {Map<string, any>} transcripts on disk, by conversation */
  transcripts: new Map(),
  /** Whether Claude Code finds a key or a login on the host. */
  hasKey: true,
  isLoaded: false,
  isConnected: true,
  isSignedOut: false,
  problem: "",
};

export const REFUSED_TOKEN = "The host does not accept this token. It may belong to another host, or date from before a restart. Open the latest link.";

const INTERRUPTED = "the query was interrupted";

/** @type {Set<() => void>} */
const listeners = new Set();
let stopping = new AbortController();
/** Whether this tab is the one that notifies while all are hidden. */
let isNotifier = !navigator.locks;
navigator.locks?.request("pilothouse-notifier", () => {
  isNotifier = true;
  return new Promise(() => undefined); // until the tab is closed
});

// Times such as "5 min" go on while nothing happens.
setInterval(() => document.hidden || changed(), 30_000);

export function changed() {
  for (const listener of listeners) listener();
}

/** Redraw the component that calls this whenever the store changes. */
export function useStore() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  // Before anything else happens, so that no change is missed.
  useLayoutEffect(() => {
    const listener = () => redraw(null);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return store;
}

/** Load everything, then follow the events of the host. */
export async function connect() {
  stopping.abort();
  stopping = new AbortController();
  const { signal } = stopping;
  Object.assign(store, { isSignedOut: false, problem: "" });
  while (!signal.aborted) {
    try {
      const from = await load();
      await follow("v1/events", { signal, from, onEvents: takeEvents, onState: setConnected, needsHidden: () => isNotifier });
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return signOut(REFUSED_TOKEN);
      if (!(error instanceof ApiError) || error.status >= 500) setConnected(false);
      else if (error.status !== 410 && error.status !== 400) store.problem = error.message;
      changed();
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

/** @param {string} [problem] why the page asks for the token again */
export function signOut(problem = "") {
  stopping.abort();
  dropToken();
  Object.assign(store, { isSignedOut: true, problem });
  changed();
}

async function load() {
  const found = await call("GET", "v1/sessions");
  store.sessions = new Map(found.sessions.map((/** @type {Session} */ each) => [each.id, each]));
  await loadAsks();
  Object.assign(store, { hasKey: found.has_key !== false, isLoaded: true, isConnected: true, problem: "" });
  changed();
  loadTranscripts();
  return String(found.events_from);
}

async function loadAsks() {
  const { asks } = await call("GET", "v1/asks");
  store.asks = new Map(asks.map((/** @type {Ask} */ each) => [each.id, each]));
  changed();
}

/** Conversations on disk give sessions their title, directory and branch. */
export async function loadTranscripts() {
  try {
    const found = await call("GET", "v1/transcripts?limit=200");
    store.transcripts = new Map(found.transcripts.map((/** @type {any} */ each) => [each.session_id, each]));
    changed();
  } catch {
    // A token of one client does not see them. That the host is gone is seen by its events.
  }
}

let reload = 0;

/** Claude Code writes to the disk shortly after it has said something. */
function loadTranscriptsSoon() {
  clearTimeout(reload);
  reload = setTimeout(loadTranscripts, 1000);
}

/** @param {boolean} connected */
function setConnected(connected) {
  if (store.isConnected === connected) return;
  store.isConnected = connected;
  // A host that was restarted has ended processes without an event.
  if (connected) load().catch(() => undefined);
  changed();
}

/** @param {import("./api.js").ServerEvent[]} events */
function takeEvents(events) {
  for (const { event, data } of events) {
    if (event === "session") takeSession(data);
    else if (event === "asked") {
      if (data.request) store.asks.set(data.id, data);
      else loadAsks().catch(() => undefined); // it is too long for an event
      loadTranscriptsSoon();
      notify(`${titleOf(store.sessions.get(data.session))} is waiting for you`, data.title, data.id);
    } else if (event === "settled") store.asks.delete(data.id);
    else if (event === "closed") {
      store.sessions.delete(data.session);
      for (const ask of [...store.asks.values()]) if (ask.session === data.session) store.asks.delete(ask.id);
    }
  }
  changed();
}

/** @param {Session} session */
function takeSession(session) {
  const before = store.sessions.get(session.id);
  if (session.conversation && !store.transcripts.has(session.conversation)) loadTranscriptsSoon();
  store.sessions.set(session.id, session);
  if (before?.state !== "running" || session.state === "running") return;
  loadTranscripts();
  notify(`${titleOf(session)}: ${session.error ? "failed" : "done"}`, session.error ?? session.last_result?.text ?? "", session.id);
}

/** @param {Session | undefined} session */
export function titleOf(session) {
  if (!session) return "Session";
  const known = store.transcripts.get(session.conversation ?? "");
  return known?.custom_title || known?.ai_title || session.start?.title || known?.summary || "New session";
}

/** @param {Session} session */
export function directoryOf(session) {
  return store.transcripts.get(session.conversation ?? "")?.cwd ?? session.start?.cwd ?? "";
}

/** @param {Session} session @returns {import("./ui.js").SessionState} */
export function stateOf(session) {
  if ([...store.asks.values()].some((ask) => ask.session === session.id)) return "waiting";
  if (session.state === "idle" && session.error && session.error !== INTERRUPTED) return "failed";
  if (session.state === "running" || session.state === "idle") return session.state;
  return "ended";
}

/** @param {string} title @param {string} body @param {string} tag */
function notify(title, body, tag) {
  if (!document.hidden || typeof Notification === "undefined" || Notification.permission !== "granted") return;
  try {
    const shown = new Notification(title, { body: reveal(body.slice(0, 200)), tag });
    shown.onclick = () => {
      window.focus();
      location.hash = "#/inbox";
      shown.close();
    };
  } catch {
    // Browsers of phones show notifications from a service worker only.
  }
}

/** @param {Ask} ask @param {object} body */
export async function settle(ask, body) {
  await call("POST", `v1/sessions/${ask.session}/asks/${ask.id}`, body);
  store.asks.delete(ask.id);
  changed();
}
