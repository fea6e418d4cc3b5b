/** The sessions of the host and the conversations on disk: find, start, resume, fork, rename, archive, delete. */

import { ApiError, call } from "./api.js";
import { directoryOf, loadTranscripts, stateOf, store, titleOf, useStore } from "./store.js";
import { Dialog, Empty, Icon, StateChip, formatAge, formatCost, formatTokens, shortPath, useKeys } from "./ui.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";

export const MODES = [["default", "Ask"], ["acceptEdits", "Accept edits"], ["plan", "Plan"], ["dontAsk", "Deny without asking"], ["auto", "Auto"], ["bypassPermissions", "Bypass permissions"]];
export const MODELS = ["opus", "sonnet", "haiku"];
/** Every session of the console streams; the host sends prompts back, so that all viewers see them. */
const OPTIONS = { partial_messages: true };

/**
 * Start a session; shows it.
 * @param {Record<string, any>} options
 * @param {string | any[]} [prompt] a text, or content blocks
 */
export async function startSession(options, prompt) {
  const given = { ...OPTIONS, ...options };
  const session = await call("POST", "v1/sessions", typeof prompt === "string" ? { options: given, prompt } : { options: given }).catch((error) => {
    throw error instanceof ApiError ? new ApiError(error.status, error.code, describeRefusal(error.message, options.cwd)) : error;
  });
  if (Array.isArray(prompt)) await call("POST", `v1/sessions/${session.id}/prompt`, { prompt });
  location.hash = `#/sessions/${session.id}`;
}

/** The host's words in those of the page. @param {string} message @param {string | undefined} directory */
function describeRefusal(message, directory) {
  const roots = /^cwd: .* is not below (.*), where this host's sessions work/s.exec(message)?.[1];
  if (!roots || !directory) return message.replace(/^cwd: /, "Directory: ");
  return `Directory: sessions of this host work below ${roots}, and ${directory} is elsewhere. Choose a directory there; or start another console for this one: pilothouse console --root ${directory} --journal FILE`;
}

/** @typedef {{key: string, href: string, title: string, directory: string, branch: string, time: number, state: import("./ui.js").SessionState, cost: number | null, context: number, session?: import("./store.js").Session, transcript?: any}} Row */

const RANKS = { waiting: 0, running: 1, failed: 2, idle: 2, ended: 3 };

/** @returns {Row[]} sessions of the host, then conversations that only the disk has */
function listRows() {
  const sessions = [...store.sessions.values()];
  const used = new Set(sessions.map((session) => session.conversation));
  /** @type {Row[]} */
  const live = sessions.map((session) => {
    const transcript = store.transcripts.get(session.conversation ?? "");
    return {
      key: session.id, href: `#/sessions/${session.id}`, title: titleOf(session), directory: directoryOf(session),
      branch: transcript?.git_branch ?? "", time: (transcript?.last_modified ?? session.created * 1000) / 1000, state: stateOf(session),
      cost: session.last_result?.session_cost_usd ?? transcript?.cost_usd ?? null, context: transcript?.context_tokens ?? 0, session, transcript,
    };
  });
  /** @type {Row[]} */
  const onDisk = [...store.transcripts.values()].filter((each) => !used.has(each.session_id)).map((each) => ({
    key: each.session_id, href: `#/transcripts/${each.session_id}`, title: each.summary, directory: each.cwd ?? "",
    branch: each.git_branch ?? "", time: each.last_modified / 1000, state: "ended", cost: each.cost_usd, context: each.context_tokens ?? 0, transcript: each,
  }));
  return [...live, ...onDisk].sort((one, other) => RANKS[one.state] - RANKS[other.state] || other.time - one.time);
}

/** @param {{starting?: boolean, prompt?: string}} props */
export function Sessions({ starting = false, prompt = "" }) {
  useStore();
  const [text, setText] = useState("");
  const [archived, setArchived] = useState(false);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const hits = useSearch(text);
  useKeys("Sessions", {
    n: ["New session", () => (location.hash = "#/sessions/new")],
    "/": ["Search", () => field.current?.focus()],
    j: ["Next session", () => moveFocus(1)],
    k: ["Previous session", () => moveFocus(-1)],
  });
  const rows = listRows().filter((row) => archived || !row.transcript?.archived);
  const words = text.toLowerCase();
  const found = words ? rows.filter((row) => `${row.title} ${row.directory} ${row.branch}`.toLowerCase().includes(words)) : rows;
  const live = found.filter((row) => row.state !== "ended");
  const rest = found.filter((row) => row.state === "ended");
  return html`<main tabindex="-1" class="page sessions">
    <header class="page-head"><h1>Sessions</h1><a class="button primary" href="#/sessions/new"><${Icon} name="plus" />New session</a></header>
    <div class="toolbar"><label class="search"><${Icon} name="search" /><input type="search" ref=${field} placeholder="Search titles, directories and conversations" aria-label="Search sessions"
        value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${archived} onChange=${(/** @type {any} */ event) => setArchived(event.target.checked)} />Archived</label></div>
    ${store.isLoaded && !rows.length && html`<${Empty} icon="sessions" title="No sessions yet">
      <p>Describe a task, and Claude Code starts working on it.</p><p><a class="button primary" href="#/sessions/new">Start a session</a></p><//>`}
    ${live.length > 0 && html`<${RowList} title="Active" rows=${live} />`}
    ${rest.length > 0 && html`<${RowList} title="Ended" rows=${rest} />`}
    ${words && !found.length && !hits.length && html`<p class="hint">No title, directory or conversation contains “${text}”.</p>`}
    ${hits.length > 0 && html`<section><h2>Found in conversations</h2><ul class="rows">${hits.map((hit) => html`<li><a class="row" href=${hrefOf(hit.session_id)}>
      <span class="main"><b>${store.transcripts.get(hit.session_id)?.summary ?? hit.session_id}</b><span class="excerpt">${markMatch(hit)}</span></span>
      <span class="side">${hit.where}</span></a></li>`)}</ul></section>`}
    ${starting && html`<${NewSession} prompt=${prompt} />`}
  </main>`;
}

/** @param {number} by */
function moveFocus(by) {
  const rows = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("a.row"))];
  rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + by))]?.focus();
}

/** @param {string} conversation */
function hrefOf(conversation) {
  const session = [...store.sessions.values()].find((each) => each.conversation === conversation);
  return session ? `#/sessions/${session.id}` : `#/transcripts/${conversation}`;
}

/** @param {any} hit */
function markMatch(hit) {
  const at = hit.excerpt.indexOf(hit.match);
  if (at < 0) return hit.excerpt;
  return html`${hit.excerpt.slice(0, at)}<mark>${hit.match}</mark>${hit.excerpt.slice(at + hit.match.length)}`;
}

/** What conversations say, shortly after the last key. @param {string} text @returns {any[]} */
function useSearch(text) {
  const [hits, setHits] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    setHits([]);
    if (text.trim().length < 2) return;
    let current = true;
    const timer = setTimeout(async () => {
      const found = await call("GET", `v1/transcripts?limit=20&q=${encodeURIComponent(text.trim())}`).catch(() => ({ hits: [] }));
      if (current) setHits(found.hits);
    }, 200);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [text]);
  return hits;
}

/** @param {{title: string, rows: Row[]}} props */
function RowList({ title, rows }) {
  return html`<section><h2>${title} <span class="count">${rows.length}</span></h2>
    <ul class="rows">${rows.map((row) => html`<${SessionRow} key=${row.key} row=${row} />`)}</ul></section>`;
}

/** @param {{row: Row}} props */
function SessionRow({ row }) {
  const waiting = row.session?.waiting ?? 0;
  return html`<li><a class="row" href=${row.href}>
      <i class=${`dot ${row.state}`} title=${row.state}></i>
      <span class="main"><b>${row.title}</b>
        <span class="sub"><span>${shortPath(row.directory)}</span>${row.branch && row.branch !== "HEAD" && html`<span><${Icon} name="branch" />${row.branch}</span>`}${row.context > 0 && html`<span>${formatTokens(row.context)} tokens of context</span>`}
          ${row.session?.error && html`<span class="error">${row.session.error}</span>`}</span></span>
      <span class="side">${row.state !== "ended" && html`<${StateChip} state=${row.state} />`}${waiting > 1 && html`<span class="count">${waiting - 1} queued</span>`}
        <span class="cost">${formatCost(row.cost)}</span><time>${formatAge(row.time)}</time></span></a>
    <${RowMenu} row=${row} /></li>`;
}

/** @param {{row: Row}} props */
function RowMenu({ row }) {
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState("");
  const [step, setStep] = useState("");
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!open) return;
    const close = (/** @type {Event} */ event) => {
      const outside = !box.current?.contains(/** @type {Node} */ (event.target));
      if (outside || (event instanceof KeyboardEvent && event.key === "Escape")) setOpen(false);
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => (document.removeEventListener("pointerdown", close), document.removeEventListener("keydown", close));
  }, [open]);
  const act = (/** @type {() => Promise<any>} */ work) => async () => {
    setOpen(false);
    setStep("");
    try {
      await work();
      await loadTranscripts();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
    }
  };
  const { session, transcript } = row;
  const conversation = session?.conversation ?? transcript?.session_id;
  const directory = row.directory ? { cwd: row.directory } : {};
  /** @type {[string, string, () => void][]} */
  const entries = [];
  if (!session && conversation) entries.push(["send", "Resume", act(() => startSession({ resume: conversation, ...directory }))]);
  if (conversation) entries.push(["branch", "Fork", act(() => startSession({ resume: conversation, fork_session: true, ...directory }))]);
  if (transcript) {
    entries.push(["edit", "Rename …", () => setStep("rename")]);
    const { archived } = transcript;
    entries.push(["archive", archived ? "Unarchive" : "Archive", act(() => call("POST", `v1/transcripts/${conversation}`, { archived: !archived }))]);
  }
  if (session) entries.push(["stop", "End and remove from the host", act(() => call("DELETE", `v1/sessions/${session.id}`))]);
  if (transcript) entries.push(["trash", "Delete from disk …", () => setStep("delete")]);
  const remove = async () => {
    if (session) await call("DELETE", `v1/sessions/${session.id}`);
    await call("DELETE", `v1/transcripts/${conversation}`);
  };
  return html`<div class="menu" ref=${box}><button class="ghost" aria-label=${`Actions for ${row.title}`} aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name="more" /></button>
    ${open && html`<div class="menu-list">${entries.map(([icon, label, run]) => html`<button onClick=${() => (setOpen(false), run())}><${Icon} name=${icon} />${label}</button>`)}</div>`}
    ${step === "rename" && html`<${Rename} title=${row.title} onClose=${() => setStep("")} onSave=${(/** @type {string} */ title) => act(() => call("POST", `v1/transcripts/${conversation}`, { title }))()} />`}
    ${step === "delete" && html`<${Dialog} title="Delete this conversation?" onClose=${() => setStep("")}><p>This deletes “${row.title}” from the disk permanently.</p>
      <div class="actions"><button class="danger" onClick=${act(remove)}>Delete</button><button onClick=${() => setStep("")}>Keep</button></div><//>`}
    ${problem && html`<${Dialog} title="That did not work" onClose=${() => setProblem("")}><p role="alert">${problem}</p><//>`}</div>`;
}

/** @param {{title: string, onClose: () => void, onSave: (title: string) => void}} props */
function Rename({ title, onClose, onSave }) {
  const [text, setText] = useState(title);
  return html`<${Dialog} title="Rename the session" onClose=${onClose}>
    <label class="field"><span>Title</span><input autofocus value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && text.trim() && onSave(text)} /></label>
    <div class="actions"><button class="primary" disabled=${!text.trim()} onClick=${() => onSave(text)}>Rename</button></div><//>`;
}

/** @param {{prompt: string}} props */
function NewSession({ prompt }) {
  const [fields, setFields] = useState({ prompt, cwd: "", model: "", permission_mode: "default" });
  const [roots, setRoots] = useState(/** @type {string[]} */ ([]));
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const close = () => (location.hash = "#/sessions");
  useEffect(() => {
    call("GET", "v1/policy").then((found) => setRoots(found.roots), (error) => setProblem(error.message));
  }, []);
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) => setFields({ ...fields, [name]: event.target.value });
  const start = async () => {
    setBusy(true);
    const options = Object.fromEntries(Object.entries(fields).filter(([name, value]) => name !== "prompt" && value && value !== "default"));
    try {
      await startSession(options, fields.prompt.trim() || undefined);
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setBusy(false);
    }
  };
  const known = [...new Set([...roots, ...[...store.transcripts.values()].map((each) => each.cwd).filter(Boolean)])];
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !busy) (event.preventDefault(), start());
  };
  return html`<${Dialog} title="New session" onClose=${close}><div onKeyDown=${onKeyDown}>
    <label class="field"><span>What should be done?</span><textarea rows="5" autofocus value=${fields.prompt} onInput=${set("prompt")}
      placeholder="Find out why the login test fails and fix it"></textarea></label>
    <label class="field"><span>Directory</span><input list="directories" value=${fields.cwd} onInput=${set("cwd")} placeholder=${roots[0] ?? ""} /></label>
    <datalist id="directories">${known.map((each) => html`<option value=${each}></option>`)}</datalist>
    <div class="pair"><label class="field"><span>Model</span><input list="models" value=${fields.model} onInput=${set("model")} placeholder="default" /></label>
      <datalist id="models">${MODELS.map((each) => html`<option value=${each}></option>`)}</datalist>
      <label class="field"><span>Permission mode</span><select value=${fields.permission_mode} onChange=${set("permission_mode")}>${MODES.map(([mode, label]) => html`<option value=${mode}>${label}</option>`)}</select></label></div>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <div class="actions"><button class="primary" disabled=${busy} onClick=${start}>${busy ? "Starting …" : "Start"} <kbd>Ctrl ↵</kbd></button></div></div><//>`;
}
