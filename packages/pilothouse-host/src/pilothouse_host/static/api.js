/** The host's HTTP API: the token, requests, and streams of events that go on where they broke off. */

const TOKEN_KEY = "pilothouse.token";
const BASE = new URL("../", import.meta.url);
const MAX_DELAY = 5000;

export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Take the token from the address, where it came as `#token=…`, and keep it for this tab. */
export function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  setToken(decodeToken(found[1] ?? ""));
  history.replaceState(null, "", location.pathname + location.search);
}

/** The token in a link; a text that is not encoded stays as it is. @param {string} text */
export function decodeToken(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @param {string} token */
export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token.trim());
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN_KEY));
}

export function dropToken() {
  sessionStorage.removeItem(TOKEN_KEY);
}

/** @param {string} path @param {RequestInit} [init] */
async function request(path, init = {}) {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${sessionStorage.getItem(TOKEN_KEY) ?? ""}`);
  const options = { ...init, headers, credentials: /** @type {const} */ ("omit"), cache: /** @type {const} */ ("no-store") };
  const response = await fetch(new URL(path, BASE), options);
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error?.code ?? "", body.error?.message ?? `HTTP ${response.status}`);
}

/**
 * @param {string} method
 * @param {string} path such as "v1/sessions"
 * @param {any} [body]
 * @returns {Promise<any>}
 */
export async function call(method, path, body) {
  const response = await request(path, { method, body: body === undefined ? null : JSON.stringify(body) });
  return response.status === 204 ? null : response.json();
}

/** @typedef {{id: string, event: string, data: any}} ServerEvent */

/**
 * Splits the text of an event stream into events.
 */
export class EventParser {
  constructor() {
    this.rest = "";
  }

  /** @param {string} text @returns {ServerEvent[]} */
  feed(text) {
    const blocks = (this.rest + text).split("\n\n");
    this.rest = blocks.pop() ?? "";
    /** @type {ServerEvent[]} */
    const events = [];
    for (const block of blocks) {
      /** @type {Record<string, string>} */
      const fields = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (fields.data === undefined) continue;
      events.push({ id: fields.id ?? "", event: fields.event ?? "message", data: JSON.parse(fields.data) });
    }
    return events;
  }
}

/**
 * Follow a stream of events until `signal` is aborted, or the host refuses it. A broken stream goes on after the last event.
 *
 * @param {string} path such as "v1/events"
 * @param {object} options
 * @param {AbortSignal} options.signal
 * @param {string} [options.from] id of the last event that is known
 * @param {(events: ServerEvent[]) => boolean | void} options.onEvents called with events in order; true ends it
 * @param {(connected: boolean) => void} [options.onState]
 * @param {() => boolean} [options.needsHidden] whether the stream is needed while the tab is hidden; else it waits then, as
 *   a browser has six connections to a host, for all tabs together
 * @returns {Promise<void>} rejects with an ApiError when the host refuses
 */
export async function follow(path, { signal, from, onEvents, onState, needsHidden = () => false }) {
  let last = from;
  let delay = 250;
  while (!signal.aborted) {
    const pause = new AbortController();
    const onVisibility = () => document.hidden && !needsHidden() && pause.abort();
    document.addEventListener("visibilitychange", onVisibility);
    try {
      onVisibility();
      if (pause.signal.aborted) await becomeVisible(signal);
      if (signal.aborted) return;
      const either = AbortSignal.any(pause.signal.aborted ? [signal] : [signal, pause.signal]);
      const headers = last === undefined ? undefined : { "last-event-id": last };
      const response = await request(path, headers ? { signal: either, headers } : { signal: either });
      onState?.(true);
      delay = 250;
      const parser = new EventParser();
      const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      const decoder = new TextDecoder();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = parser.feed(decoder.decode(value, { stream: true }));
        if (!events.length) continue;
        last = events[events.length - 1]?.id;
        if (onEvents(events)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500) throw error;
      if (pause.signal.aborted) continue;
    } finally {
      document.removeEventListener("visibilitychange", onVisibility);
    }
    onState?.(false);
    await new Promise((resolve) => setTimeout(resolve, delay));
    delay = Math.min(delay * 2, MAX_DELAY);
  }
}

/** @param {AbortSignal} signal @returns {Promise<void>} */
function becomeVisible(signal) {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", check);
      signal.removeEventListener("abort", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    signal.addEventListener("abort", check);
    check();
  });
}
