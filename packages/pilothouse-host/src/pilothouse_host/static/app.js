/** The shell: navigation, the token, keys, what stands in the title. */

import { decodeToken, hasToken, setToken, takeToken } from "./api.js";
import { BreakdownPage } from "./breakdown.js";
import { Costs } from "./costs.js";
import { FleetPage } from "./fleet.js";
import { Inbox } from "./inbox.js";
import { PolicyPage } from "./policy.js";
import { Sessions } from "./sessions.js";
import { connect, signOut, useStore } from "./store.js";
import { TimelinePage } from "./timeline.js";
import { Boundary, Dialog, Icon, listKeys, useKeys } from "./ui.js";
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";

const PAGES = [["inbox", "Inbox", "inbox"], ["sessions", "Sessions", "sessions"], ["costs", "Costs", "coin"], ["fleet", "Fleet", "fleet"], ["policy", "Policy", "shield"]];
const THEME_KEY = "pilothouse.theme";

/** @returns {string[]} parts of the address after `#/` */
function readRoute() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return []; // a "%" that stands for nothing
  }
}

/** @param {string[]} route */
function renderPage([page = "inbox", id = "", prompt = ""]) {
  if (page === "sessions" && id && id !== "new") return html`<${TimelinePage} key=${id} id=${id} />`;
  if (page === "sessions") return html`<${Sessions} starting=${id === "new"} prompt=${prompt} />`;
  if (page === "transcripts") return html`<${TimelinePage} key=${id} id=${id} onDisk />`;
  if (page === "costs" && id) return html`<${BreakdownPage} key=${id} id=${id} />`;
  if (page === "costs") return html`<${Costs} />`;
  if (page === "fleet") return html`<${FleetPage} />`;
  if (page === "policy") return html`<${PolicyPage} />`;
  return html`<${Inbox} />`;
}

function App() {
  const { asks, isConnected, isLoaded, isSignedOut, problem } = useStore();
  const [route, setRoute] = useState(readRoute());
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const read = () => {
      // A new link in the same tab brings another token.
      if (location.hash.startsWith("#token=")) (takeToken(), connect());
      setRoute(readRoute());
    };
    addEventListener("hashchange", read);
    read(); // The address may have changed between the first paint and this effect.
    return () => removeEventListener("hashchange", read);
  }, []);
  useEffect(() => {
    document.title = asks.size ? `(${asks.size}) pilothouse` : "pilothouse";
  }, [asks.size]);
  useKeys("Everywhere", {
    "?": ["Show keyboard shortcuts", () => setHelp(true)],
    "g i": ["Inbox", () => (location.hash = "#/inbox")],
    "g s": ["Sessions", () => (location.hash = "#/sessions")],
    "g c": ["Costs", () => (location.hash = "#/costs")],
    "g f": ["Fleet", () => (location.hash = "#/fleet")],
    "g p": ["Policy", () => (location.hash = "#/policy")],
  });
  if (isSignedOut) return html`<${SignIn} problem=${problem} />`;
  const current = route[0] === "transcripts" ? "sessions" : (route[0] ?? "inbox");
  const skip = html`<a class="skip" href="#content" onClick=${(/** @type {Event} */ event) => (event.preventDefault(), /** @type {HTMLElement | null} */ (document.querySelector("main"))?.focus())}>Skip to content</a>`;
  return html`<nav class="nav" aria-label="Pages">${skip}<a class="brand" href="#/inbox"><svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="6"/><path d="M12 2v20M2 12h20M5 5l14 14M19 5L5 19"/></svg><span>pilothouse</span></a>
      ${PAGES.map(([page, label, icon]) => html`<a class="page-link" href=${`#/${page}`} aria-current=${current === page ? "page" : null}><${Icon} name=${icon ?? ""} /><span>${label}</span>
        ${page === "inbox" && asks.size > 0 && html`<b class="badge" aria-label=${`${asks.size} waiting`}>${asks.size}</b>`}</a>`)}
      <span class="spacer"></span>
      <div class="nav-foot"><span class=${`link-state ${isConnected ? "" : "lost"}`} role="status"><i class="dot"></i><span>${isConnected ? "Connected" : "Connecting …"}</span></span>
        <button class="ghost" aria-label="Switch between light and dark" title="Switch between light and dark" onClick=${switchTheme}><${Icon} name="theme" /></button>
        <button class="ghost" aria-label="Keyboard shortcuts" title="Keyboard shortcuts: ?" onClick=${() => setHelp(true)}><${Icon} name="keyboard" /></button></div></nav>
    <div class="content">${problem && html`<p class="notice error" role="alert">${problem}</p>`}${isLoaded ? html`<${Boundary} key=${route.join("/")} what="page">${renderPage(route)}<//>` : html`<main tabindex="-1" class="page" aria-busy="true"></main>`}</div>
    ${help && html`<${Dialog} title="Keyboard shortcuts" onClose=${() => setHelp(false)}><div class="key-help">${listKeys().map(([group, entries]) => html`<section><h3>${group}</h3><dl>${entries.map(([key, label]) => html`<dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd>`)}</dt><dd>${label}</dd>`)}</dl></section>`)}
      <section><h3>While you type</h3><dl><dt><kbd>↵</kbd></dt><dd>Send; during a turn, add to it</dd><dt><kbd>Alt</kbd><kbd>↵</kbd></dt><dd>Queue as the next prompt</dd><dt><kbd>⇧</kbd><kbd>↵</kbd></dt><dd>New line</dd><dt><kbd>Ctrl</kbd><kbd>↵</kbd></dt><dd>Submit a form</dd></dl></section></div><//>`}`;
}

/** Asks for the token: the address had none, or the host does not know it any more. @param {{problem: string}} props */
function SignIn({ problem }) {
  const [text, setText] = useState("");
  const enter = (/** @type {Event} */ event) => {
    event.preventDefault();
    const found = /#token=([^&\s]+)/.exec(text);
    setToken(found?.[1] ? decodeToken(found[1]) : text);
    connect();
  };
  return html`<main class="sign-in"><h1>pilothouse</h1><p>This page needs the host's token. Open the link that <code>pilothouse console</code> prints, or paste the link here.</p>
    <form onSubmit=${enter}><label class="field"><span>Link or token</span><input type="password" autocomplete="off" required value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}<button class="primary">Open</button></form></main>`;
}

function switchTheme() {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem(THEME_KEY, isDark ? "light" : "dark");
}

const theme = localStorage.getItem(THEME_KEY);
if (theme) document.documentElement.dataset.theme = theme;
takeToken();
if (hasToken()) connect();
else signOut();
render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
