/** Logins of the host, at Claude and at MCP servers: what needs one, and the card that leads through it. */

import { ApiError, call } from "./api.js";
import { changed, store } from "./store.js";
import { listObjects, reveal, toText } from "./text.js";
import { Icon } from "./ui.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

/** @typedef {{id: string, server: string | null, account: string | null, state: "waiting" | "done" | "failed", error: string | null}} Login */
/** @typedef {Login & {url: string | null, email?: string | null, subscription_type?: string | null, api_key_source?: string | null, tools?: string[]}} LoginFacts */

const NEEDS_LOGIN = "needs-auth";
/** @type {[RegExp, string][]} what Claude Code says, in words for people */
const ERRORS = [
  [/access_denied/, "The login was declined on its page."],
  [/code wasn't accepted|invalid_grant|Invalid 'code'/i, "The code was not accepted. It may have expired, or been used before."],
  [/newer login has replaced/, "Another login was started after this one."],
  [/process that began this login has ended/, "The process of this session has ended. Log in again."],
];
const WRONG = {
  server: "This is not the address of this login. Copy the whole address from the page that did not load.",
  claude: "This is not the code of this login. Copy all of it, including what follows the #.",
};
/** @type {Set<string>} what the user does not want to see any more: session and server */
const dismissed = new Set();

/**
 * The logins that a session needs, and those that wait or have just ended, by server; "" is Claude.
 * @param {import("./fold.js").Timeline} timeline
 * @param {import("./store.js").Session | undefined} session
 * @returns {Map<string, Login | undefined>}
 */
export function listLogins(timeline, session) {
  /** @type {Map<string, Login | undefined>} */
  const found = new Map();
  if (session?.kind !== "hosted") return found;
  if (timeline.needsLogin) found.set("", undefined);
  for (const server of listObjects(timeline.init?.mcp_servers)) if (server.status === NEEDS_LOGIN) found.set(toText(server.name), undefined);
  for (const login of session.logins ?? []) {
    const key = login.server ?? "";
    if (login.state !== "done" || found.has(key) || !timeline.items.some((item) => item.kind === "result")) found.set(key, login);
  }
  for (const key of [...found.keys()]) if (dismissed.has(`${session.id} ${key}`) && found.get(key)?.state !== "waiting") found.delete(key);
  return found;
}

/** @param {string} session @param {string} server @param {string} [account] */
export function beginLogin(session, server, account = "claude") {
  return call("POST", `v1/sessions/${session}/logins`, server ? { server } : { account });
}

/** A link that a server has given: only a web page may be opened. @param {string | null | undefined} url @returns {URL | null} */
function readLink(url) {
  const found = url && URL.canParse(url) ? new URL(url) : null;
  return found && /^https?:$/.test(found.protocol) ? found : null;
}

/** @param {string | null} error */
function explain(error) {
  return ERRORS.find(([pattern]) => pattern.test(error ?? ""))?.[1] ?? reveal(error);
}

/** All that the host says of a login, read again when its state changes. @param {string} session @param {Login | undefined} login @returns {LoginFacts | null} */
function useFacts(session, login) {
  const [facts, setFacts] = useState(/** @type {LoginFacts | null} */ (null));
  useEffect(() => {
    let current = true;
    if (login) call("GET", `v1/sessions/${session}/logins/${login.id}`).then((found) => current && setFacts(found), () => undefined);
    return () => {
      current = false;
    };
  }, [login?.id, login?.state]);
  useEffect(() => {
    if (login?.state !== "done" || login.server || store.hasKey) return;
    store.hasKey = true;
    changed();
  }, [login?.state]);
  return facts && facts.id === login?.id ? facts : null;
}

/**
 * One login: offered, on its way, done or failed.
 * @param {{session: string, server: string, login?: Login, onDismiss?: () => void}} props
 */
export function LoginCard({ session, server, login, onDismiss }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const facts = useFacts(session, login);
  const place = server ? `MCP server ${reveal(server)}` : "Claude";
  const attempt = async (/** @type {() => Promise<any>} */ work) => {
    setBusy(true);
    setProblem("");
    try {
      await work();
    } catch (error) {
      const isWrong = error instanceof ApiError && error.code === "wrong_callback";
      // How a login has failed is told by its state.
      if (!(error instanceof ApiError && error.code === "login_failed" && login)) setProblem(isWrong ? WRONG[server ? "server" : "claude"] : explain(/** @type {Error} */ (error).message));
    }
    setBusy(false);
  };
  const begin = (/** @type {string} */ account) => attempt(() => beginLogin(session, server, account));
  const dismiss = () => {
    dismissed.add(`${session} ${server}`);
    if (login) call("DELETE", `v1/sessions/${session}/logins/${login.id}`).catch(() => undefined);
    changed();
    onDismiss?.();
  };
  const state = login?.state ?? "offered";
  const view = { offered: Offer, waiting: Steps, done: Done, failed: Offer }[state];
  return html`<article class=${`card login ${state}`} aria-label=${`Login at ${place}`}>
    <header><span class=${`chip kind ${state === "done" ? "plan" : ""}`}>Login</span><b>${place}</b>
      ${state !== "waiting" && html`<button class="ghost small dismiss" aria-label=${`Dismiss the login at ${place}`} onClick=${dismiss}><${Icon} name="close" /></button>`}</header>
    ${state === "failed" && html`<p class="problem" role="alert">${explain(login?.error ?? "")}</p>`}
    <${view} server=${server} facts=${facts} busy=${busy} onBegin=${begin} onCancel=${dismiss}
      onComplete=${(/** @type {string} */ answer) => attempt(() => call("POST", `v1/sessions/${session}/logins/${login?.id}`, { answer }))} />
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </article>`;
}

/** What to do where Claude Code has neither a key nor a login: the ways that the command offers, too. */
export function NoKey() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const logIn = async () => {
    setBusy(true);
    try {
      const session = await call("POST", "v1/sessions", { options: { partial_messages: true } });
      await beginLogin(session.id, "").catch(async (error) => {
        await call("DELETE", `v1/sessions/${session.id}`).catch(() => undefined);
        throw error;
      });
      location.hash = `#/sessions/${session.id}`;
    } catch (error) {
      setProblem(explain(/** @type {Error} */ (error).message));
      setBusy(false);
    }
  };
  return html`<article class="card no-key" aria-label="No key and no login"><h2>Claude Code has neither a key nor a login on this host</h2>
    <p class="hint">Three ways to continue:</p>
    <ul class="ways"><li><button class="primary" disabled=${busy} onClick=${logIn}>${busy ? "Starting …" : "Log in to Claude"}</button><span class="hint">with a subscription, in your browser</span></li>
      <li><code>export ANTHROPIC_API_KEY=…</code><span class="hint">use an API key: set it where the host runs, and start the host again</span></li>
      <li><code>pilothouse chat --local</code><span class="hint">a small open model in a terminal on that machine: no key, no tools</span></li></ul>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}</article>`;
}

/** @typedef {{server: string, facts: LoginFacts | null, busy: boolean, onBegin: (account: string) => void, onComplete: (answer: string) => void, onCancel: () => void}} StepProps */

/** @param {StepProps} props */
function Offer({ server, busy, onBegin }) {
  return html`<p>${server ? "Its tools are unavailable until you log in." : "Claude Code has no login on this host. With a subscription, or with a Console account that pays per use:"}</p>
    <div class="actions"><button class="primary" disabled=${busy} onClick=${() => onBegin("claude")}>${busy ? "Starting …" : "Log in"}</button>
      ${!server && html`<button disabled=${busy} onClick=${() => onBegin("console")}>Log in with a Console account</button>`}</div>`;
}

/** @param {StepProps} props */
function Steps({ server, facts, busy, onComplete, onCancel }) {
  const [answer, setAnswer] = useState("");
  const link = readLink(facts?.url);
  const finish = () => (onComplete(answer.trim()), setAnswer(""));
  const label = server ? "Address of the last page" : "Code";
  const cancel = html`<button disabled=${busy} onClick=${onCancel}>Cancel</button>`;
  if (facts && !facts.url) return html`<p class="hint" role="status">Connecting …</p><div class="actions">${cancel}</div>`;
  if (facts && !link) return html`<p class="problem" role="alert">The server sent a link that is not a web page.</p><div class="actions">${cancel}</div>`;
  return html`<ol class="steps">
      <li><p>${link && html`<a class="button primary" href=${link.href} target="_blank" rel="noopener noreferrer">Open the login page</a> <span class="hint">on ${reveal(link.host)}</span>`}</p></li>
      <li><p>${server ? "Approve the login there. If your browser runs on the same machine as the host, you are done. Otherwise the last page does not load: copy its address and paste it here." : "Approve the login there, then copy the code that the page shows and paste it here."}</p>
        <div class="reason"><input aria-label=${label} placeholder=${server ? "http://localhost:…/callback?code=…" : "…#…"} autocomplete="off" spellcheck=${false} value=${answer}
          onInput=${(/** @type {any} */ event) => setAnswer(event.target.value)}
          onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && answer.trim() && !busy && finish()} />
        <button class="primary" disabled=${busy || !answer.trim()} onClick=${finish}>${busy ? "Checking …" : "Finish"}</button>${cancel}</div></li></ol>`;
}

/** @param {StepProps} props */
function Done({ server, facts }) {
  const count = facts?.tools?.length ?? 0;
  const plan = facts?.subscription_type ? ` (${reveal(facts.subscription_type)})` : "";
  const who = facts?.email ? ` as ${reveal(facts.email)}${plan}` : "";
  return html`<p role="status">${server ? `Logged in. ${count} ${count === 1 ? "tool is" : "tools are"} available.` : `Logged in${who}. Your next prompt uses this login.`}</p>
    ${facts?.api_key_source && html`<p class="hint">The host's API key still takes precedence over this login.</p>`}`;
}
