/** The inbox: everything that waits for a person, of all sessions. */

import { AskCard } from "./asks.js";
import { NoKey } from "./logins.js";
import { store, useStore } from "./store.js";
import { Empty, useKeys } from "./ui.js";
import { html, useState } from "./vendor/htm-preact.js";

const EXAMPLES = ["Explain what is in this directory", "Find out why a test fails and fix it", "Review the last commit"];

export function Inbox() {
  const { asks } = useStore();
  const list = [...asks.values()].sort((one, other) => one.asked_at - other.asked_at);
  const [chosen, setChosen] = useState("");
  const at = Math.max(0, list.findIndex((ask) => ask.id === chosen));
  const active = list[at];
  const move = (/** @type {number} */ by) => setChosen(list[Math.min(list.length - 1, Math.max(0, at + by))]?.id ?? "");
  useKeys("Inbox", {
    j: ["Next request", () => move(1)],
    k: ["Previous request", () => move(-1)],
    o: ["Open the session", () => active && (location.hash = `#/sessions/${active.session}`)],
  });
  return html`<main tabindex="-1" class="page inbox">
    <header class="page-head"><h1>Inbox</h1><${NotifyButton} /></header>
    ${store.isLoaded && !store.hasKey && html`<${NoKey} />`}
    ${store.isLoaded && !list.length && !store.sessions.size && html`<${Empty} icon="inbox" title="Nothing is waiting for you yet">
      <p>Describe a task. Claude Code works on it in a directory on this machine, and what needs your approval appears here.</p>
      <p><a class="button primary" href="#/sessions/new">Start a session</a></p>
      <ul class="examples" aria-label="For example">${EXAMPLES.map((each) => html`<li><a class="button" href=${`#/sessions/new/${encodeURIComponent(each)}`}>${each}</a></li>`)}</ul><//>`}
    ${store.isLoaded && !list.length && store.sessions.size > 0 && html`<${Empty} icon="inbox" title="Nothing is waiting for you">
      <p>When Claude Code needs permission, has a question or proposes a plan, it appears here.</p>
      <p><a class="button primary" href="#/sessions/new">Start a session</a></p><//>`}
    <div class="asks" aria-live="polite">${list.map((ask) => html`<${AskCard} key=${ask.id} ask=${ask} isActive=${ask === active} onActivate=${() => setChosen(ask.id)} />`)}</div>
  </main>`;
}

/** Ask the browser for notifications, once the user wants them. */
function NotifyButton() {
  const known = typeof Notification === "undefined" ? "denied" : Notification.permission;
  const [state, setState] = useState(known);
  if (state !== "default") return null;
  return html`<button onClick=${async () => setState(await Notification.requestPermission())}>Notify me</button>`;
}
