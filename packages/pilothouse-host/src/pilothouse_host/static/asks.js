/** Asks: what waits for a person, settled in place. */

import { ToolInput, toolLabel } from "./calls.js";
import { directoryOf, settle, store, titleOf } from "./store.js";
import { listObjects, reveal, toText } from "./text.js";
import { Boundary, Code, formatAge, shortPath, useKeys } from "./ui.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

/** @typedef {import("./store.js").Ask} Ask */

/** @type {Record<string, string>} */
const KIND_WORDS = { permission: "Permission", question: "Question", plan: "Plan", elicitation: "Form" };
const MAX_TITLE = 300;
const MAX_FORM_FIELDS = 100;
const MAX_OPTIONS = 500;
const REACTION_MS = 400;

/**
 * One ask. The card that has the keys is `isActive`.
 * @param {{ask: Ask, isActive: boolean, onActivate?: () => void, withSession?: boolean}} props
 */
export function AskCard({ ask, isActive, onActivate, withSession = true }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (isActive) ref.current?.scrollIntoView({ block: "nearest" });
  }, [isActive]);
  const hasKeys = useRef(isActive);
  hasKeys.current = isActive && !busy;
  useLayoutEffect(() => () => { if (hasKeys.current && !store.asks.has(ask.id)) goneAt = performance.now(); }, []);
  const send = async (/** @type {object} */ body) => {
    setBusy(true);
    setProblem("");
    try {
      await settle(ask, body);
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setBusy(false);
    }
  };
  const session = store.sessions.get(ask.session);
  const Form = FORMS[ask.kind] ?? Permission;
  const title = cutTitle(ask.title);
  const decline = html`<div class="actions"><button class="danger" disabled=${busy} onClick=${() => send({ decision: "deny" })}>Decline</button></div>`;
  return html`<article ref=${ref} class=${`ask ${isActive ? "active" : ""}`} aria-label=${title} onPointerDown=${onActivate} onFocusIn=${onActivate}>
    <header>
      <span class=${`chip kind ${ask.kind}`}>${KIND_WORDS[ask.kind] ?? ask.kind}</span>
      ${withSession && html`<a href=${`#/sessions/${ask.session}`}>${titleOf(session)}</a>`}
      ${withSession && session && html`<span class="where">${shortPath(directoryOf(session))}</span>`}
      ${ask.restored && html`<span class="chip">asked before the host was restarted</span>`}
      <time>${formatAge(ask.asked_at)}${ask.expires_at ? `, ${formatLeft(ask.expires_at)}` : ""}</time>
    </header>
    <h2>${title}</h2>
    <${Boundary} what="request" data=${() => ask.request} actions=${decline}><${Form} ask=${ask} send=${send} busy=${busy} isActive=${isActive} /><//>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </article>`;
}

/** @param {string} title */
function cutTitle(title) {
  return title.length > MAX_TITLE ? `${reveal(title.slice(0, MAX_TITLE))} …` : reveal(title);
}

/** @param {number} expires */
function formatLeft(expires) {
  const minutes = Math.max(0, Math.round((expires - Date.now() / 1000) / 60));
  return minutes > 99 ? `${Math.round(minutes / 60)} h left` : `${minutes} min left`;
}

/** @typedef {{ask: Ask, send: (body: object) => void, busy: boolean, isActive: boolean}} FormProps */

/** A field for a reason, with the button that sends it. @param {{label: string, action: string, onSend: (text: string) => void, onCancel: () => void, busy: boolean}} props */
function ReasonField({ label, action, onSend, onCancel, busy }) {
  const [text, setText] = useState("");
  const ref = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => ref.current?.focus(), []); // at once: the next key is already a letter of the reason
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      onSend(text);
    } else if (event.key === "Escape") onCancel();
  };
  return html`<div class="reason"><textarea ref=${ref} rows="2" aria-label=${label} placeholder=${label} value=${text}
      onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <button class="danger" disabled=${busy} onClick=${() => onSend(text)}>${action}</button>
    <button class="ghost" onClick=${onCancel}>Cancel</button></div>`;
}

/** @param {{ask: Ask, send: (body: object) => void, busy: boolean, isActive: boolean, table: Record<string, [string, () => void]>}} props */
function Keys({ isActive, table }) {
  return isActive ? html`<${BoundKeys} table=${table} />` : null;
}

/** When the request that had the keys went away by itself: settled by somebody else, or withdrawn. */
let goneAt = -Infinity;

/** A key that is pressed just as the next request takes that place was meant for the one before. @param {{table: Record<string, [string, () => void]>}} props */
function BoundKeys({ table }) {
  const act = (/** @type {() => void} */ run) => () => performance.now() - goneAt > REACTION_MS && run();
  useKeys("Selected request", Object.fromEntries(Object.entries(table).map(([key, [label, run]]) => [key, [label, act(run)]])));
  return null;
}

/** What can be seen of an element now, as a part of its whole content. @param {HTMLElement} element @returns {[number, number]} pixels from its top */
function measureView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  let [from, to] = [Math.max(top, 0), Math.min(bottom, innerHeight)];
  for (let outer = element.parentElement; outer; outer = outer.parentElement) {
    if (getComputedStyle(outer).overflowY === "visible") continue;
    const clip = outer.getBoundingClientRect();
    [from, to] = [Math.max(from, clip.top), Math.min(to, clip.bottom)];
  }
  const hidden = element.scrollTop - top;
  return [from + hidden, to + hidden];
}

/**
 * Whether all of an element has been in view, from its top to its end: what is to be decided may be long.
 * @param {{current: HTMLElement | null}} ref
 * @returns {{isRead: boolean, showRest: () => void}}
 */
function useReading(ref) {
  const [isRead, setRead] = useState(false);
  const seen = useRef({ to: 0, width: 0 });
  const look = () => {
    const element = ref.current;
    if (!element) return;
    // In another width, all lines stand elsewhere.
    if (element.clientWidth !== seen.current.width) seen.current = { to: 0, width: element.clientWidth };
    const more = element.querySelector(".more");
    const end = more ? more.getBoundingClientRect().top - element.getBoundingClientRect().top + element.scrollTop : Infinity;
    const [from, to] = measureView(element);
    if (!document.hidden && from <= seen.current.to + 1) seen.current.to = Math.max(seen.current.to, Math.min(to, end));
    setRead(!more && seen.current.to >= element.scrollHeight - 2);
  };
  useLayoutEffect(look); // a request above this one may be gone
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const changes = new ResizeObserver(look);
    for (const each of [element, ...element.children]) changes.observe(each);
    document.addEventListener("scroll", look, { capture: true, passive: true });
    document.addEventListener("visibilitychange", look);
    addEventListener("resize", look);
    return () => {
      changes.disconnect();
      document.removeEventListener("scroll", look, { capture: true });
      document.removeEventListener("visibilitychange", look);
      removeEventListener("resize", look);
    };
  }, []);
  const showRest = () => {
    const element = ref.current;
    if (!element) return;
    /** @type {HTMLElement | null} */ (element.querySelector(".more"))?.click();
    element.scrollTop = seen.current.to;
    const page = element.closest(".dock, .page");
    if (!page) return;
    const { top, bottom } = page.getBoundingClientRect();
    const next = element.getBoundingClientRect().top + seen.current.to - element.scrollTop;
    if (next < top || next > bottom - 100) page.scrollTop += next - top - 8;
  };
  return { isRead, showRest };
}

/** The keys wait until all was in view. A click on a button does not: it is aimed at this request. */
function Unread() {
  return html`<p class="hint unread" role="status">You have not seen all of this yet: scroll<span class="by-key">, or press <kbd>a</kbd>,</span> to see the rest.</p>`;
}

/** @param {FormProps} props */
function Permission({ ask, send, busy, isActive }) {
  const [denying, setDenying] = useState(false);
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const { isRead, showRest } = useReading(body);
  const { request } = ask;
  const rules = listObjects(request.permission_suggestions).map(describeRule).join(" · ");
  const isSame = !rules || Object.hasOwn(Object(request.input), "command"); // as the host decides; see `Ask.allow`
  const allow = () => send({ decision: "allow" });
  const always = () => send({ decision: "allow", always: true });
  const minutes = () => send({ decision: "allow", minutes: 15 });
  const whenRead = (/** @type {() => void} */ act) => (isRead ? act : showRest);
  /** @type {Record<string, [string, () => void]>} */
  const table = { a: ["Allow, once you have seen all of it", whenRead(allow)], d: ["Deny, with a reason", () => setDenying(true)] };
  if (ask.can_always_allow) table.A = ["Always allow in this session", whenRead(always)];
  if (ask.can_allow_for_minutes) table.m = ["Allow for 15 minutes", whenRead(minutes)];
  return html`<${Keys} isActive=${isActive} table=${table} />
    <div class="ask-body" ref=${body} tabindex="-1"><span class="tool-name">${toolLabel(toText(ask.tool))}</span><${ToolInput} name=${ask.tool ?? ""} input=${request.input} />
      ${request.decision_reason && html`<p class="hint">${reveal(request.decision_reason)}</p>`}
      ${request.blocked_path && html`<p class="hint">Needs access to <code>${reveal(request.blocked_path)}</code></p>`}
      ${ask.can_always_allow && rules && html`<p class="hint always">Always in this session: ${rules}</p>`}
      ${ask.can_allow_for_minutes && html`<p class="hint always">For 15 minutes, in this session: ${isSame ? "the same call" : rules}</p>`}</div>
    ${denying ? html`<${ReasonField} label="Why not? The model will read this." action="Deny" busy=${busy} onSend=${(/** @type {string} */ reason) => send({ decision: "deny", reason })} onCancel=${() => setDenying(false)} />`
      : html`<div class="actions"><button class="primary" disabled=${busy} onClick=${allow}>Allow <kbd>a</kbd></button>
        <button class="danger" disabled=${busy} onClick=${() => setDenying(true)}>Deny <kbd>d</kbd></button>
        ${ask.can_always_allow && html`<button disabled=${busy} title=${rules} onClick=${always}>Always in this session <kbd>A</kbd></button>`}
        ${ask.can_allow_for_minutes && html`<button disabled=${busy} onClick=${minutes}>For 15 minutes <kbd>m</kbd></button>`}</div>`}
    ${!isRead && html`<${Unread} />`}`;
}

/** @param {any} change */
function describeRule(change) {
  const { type, behavior, rules, directories, mode } = change;
  if (type === "addRules" && behavior === "allow") return listObjects(rules).map((rule) => reveal(rule.ruleContent ? `${toText(rule.toolName)}(${toText(rule.ruleContent)})` : rule.toolName)).join(", ");
  if (type === "addDirectories" && Array.isArray(directories)) return `work in ${directories.map(reveal).join(", ")}`;
  if (type === "setMode") return mode === "acceptEdits" ? "accept edits" : `mode ${reveal(mode)}`;
  return reveal(change);
}

/** @param {FormProps} props */
function Question({ ask, send, busy, isActive }) {
  const questions = listObjects(ask.request.input?.questions).map((each) => ({ text: toText(each.question), isMulti: each.multiSelect === true, options: listObjects(each.options).map(({ label, description }) => ({ label: toText(label), description })) }));
  const [chosen, setChosen] = useState(/** @type {Record<string, string[]>} */ ({}));
  const [other, setOther] = useState(/** @type {Record<string, string>} */ ({}));
  const count = questions.reduce((sum, question) => sum + question.options.length, questions.length);
  if (count > MAX_OPTIONS) return html`<${TooLong} what=${`${count.toLocaleString()} questions and options`} limit=${MAX_OPTIONS} ask=${ask} send=${send} busy=${busy} isActive=${isActive} />`;
  const choose = (/** @type {{text: string, isMulti: boolean}} */ { text, isMulti }, /** @type {string} */ label) => {
    const before = chosen[text] ?? [];
    const without = before.filter((each) => each !== label);
    const next = isMulti ? (without.length < before.length ? without : [...before, label]) : [label];
    setChosen({ ...chosen, [text]: next });
  };
  const answerOf = (/** @type {{text: string}} */ { text }) => [...(chosen[text] ?? []), ...(other[text]?.trim() ? [other[text].trim()] : [])].join(", ");
  const isComplete = questions.every((question) => answerOf(question));
  const answer = () => isComplete && send({ decision: "answer", answers: Object.fromEntries(questions.map((question) => [question.text, answerOf(question)])) });
  const first = questions.find((question) => !answerOf(question)) ?? questions[0];
  /** @type {Record<string, [string, () => void]>} */
  const table = { Enter: ["Send the answers", answer], d: ["Decline to answer", () => send({ decision: "deny" })] };
  first?.options.slice(0, 9).forEach((option, at) => {
    table[String(at + 1)] = [`Choose the option with this number`, () => choose(first, option.label)];
  });
  return html`<${Keys} isActive=${isActive} table=${table} />
    ${questions.map((question, number) => html`<fieldset><legend class=${questions.length === 1 && question.text === ask.title && question.text.length <= MAX_TITLE ? "hidden" : ""}>${reveal(question.text)}${question.isMulti ? html` <span class="hint">choose all that apply</span>` : ""}</legend>
      ${question.options.map((option, at) => html`<label class="option">
        <input type=${question.isMulti ? "checkbox" : "radio"} name=${`${ask.id}-${number}`} checked=${(chosen[question.text] ?? []).includes(option.label)} onChange=${() => choose(question, option.label)} />
        <span><b>${reveal(option.label)}</b>${option.description && html`<small>${reveal(option.description)}</small>`}</span>${question === first && at < 9 && html`<kbd>${at + 1}</kbd>`}</label>`)}
      <input class="other" aria-label=${`Other answer: ${reveal(question.text)}`} placeholder="Something else …" value=${other[question.text] ?? ""}
        onInput=${(/** @type {any} */ event) => setOther({ ...other, [question.text]: event.target.value })}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && answer()} /></fieldset>`)}
    <div class="actions"><button class="primary" disabled=${busy || !isComplete} onClick=${answer}>Answer <kbd>↵</kbd></button>
      <button class="danger" disabled=${busy} onClick=${() => send({ decision: "deny" })}>Decline <kbd>d</kbd></button></div>`;
}

/** A form that nobody can look through: it can be declined only. @param {FormProps & {what: string, limit: number}} props */
function TooLong({ what, limit, send, busy, isActive }) {
  const decline = () => send({ decision: "deny" });
  return html`<${Keys} isActive=${isActive} table=${{ d: ["Decline", decline] }} />
    <p class="notice error" role="alert">This form has ${what}; the console shows up to ${limit}. It can only be declined here.</p>
    <div class="actions"><button class="danger" disabled=${busy} onClick=${decline}>Decline <kbd>d</kbd></button></div>`;
}

/** @param {FormProps} props */
function Plan({ ask, send, busy, isActive }) {
  const [changing, setChanging] = useState(false);
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const { isRead, showRest } = useReading(body);
  const approve = () => send({ decision: "allow" });
  const plan = ask.request.input?.plan || "Claude Code has sent no plan; the session shows what it said.";
  return html`<${Keys} isActive=${isActive} table=${{ a: ["Approve the plan, once you have seen all of it", isRead ? approve : showRest], d: ["Say what to change", () => setChanging(true)] }} />
    <div class="ask-body" ref=${body} tabindex="-1"><${ToolInput} name="ExitPlanMode" input=${{ ...ask.request.input, plan }} /></div>
    ${changing ? html`<${ReasonField} label="What should change?" action="Send back" busy=${busy} onCancel=${() => setChanging(false)}
        onSend=${(/** @type {string} */ text) => send(text.trim() ? { decision: "answer", answers: text } : { decision: "deny" })} />`
      : html`<div class="actions"><button class="primary" disabled=${busy} onClick=${approve}>Approve <kbd>a</kbd></button>
        <button class="danger" disabled=${busy} onClick=${() => setChanging(true)}>Change … <kbd>d</kbd></button></div>`}
    ${!isRead && html`<${Unread} />`}`;
}

/** @param {any} schema @returns {[string, any][]} names and descriptions of the fields of a form */
function listFormFields(schema) {
  const properties = schema?.properties;
  if (!properties || typeof properties !== "object") return [];
  return Object.entries(properties).map(([name, field]) => [name, field && typeof field === "object" ? field : {}]);
}

/** @param {any} field what a field of a form has at first */
function defaultOf({ type, default: given }) {
  if (type === "boolean") return given === true;
  return typeof given === "string" || typeof given === "number" ? given : "";
}

/** @param {FormProps} props */
function Elicitation({ ask, send, busy, isActive }) {
  const { request } = ask;
  const schema = request.requested_schema ?? request.requestedSchema;
  const fields = listFormFields(schema);
  /** @type {unknown[]} */
  const required = Array.isArray(schema?.required) ? schema.required : [];
  const [values, setValues] = useState(/** @type {() => Record<string, any>} */ (() => Object.fromEntries(fields.map(([name, field]) => [name, defaultOf(field)]))));
  const count = fields.reduce((sum, [, field]) => sum + (Array.isArray(field.enum) ? field.enum.length : 0), fields.length);
  if (fields.length > MAX_FORM_FIELDS) return html`<${TooLong} what=${`${fields.length.toLocaleString()} fields`} limit=${MAX_FORM_FIELDS} ask=${ask} send=${send} busy=${busy} isActive=${isActive} />`;
  if (count > MAX_OPTIONS) return html`<${TooLong} what=${`${count.toLocaleString()} fields and options`} limit=${MAX_OPTIONS} ask=${ask} send=${send} busy=${busy} isActive=${isActive} />`;
  const set = (/** @type {string} */ name, /** @type {any} */ value) => setValues((known) => ({ ...known, [name]: value }));
  const isUrl = request.mode === "url";
  const accept = () => {
    const filled = fields.filter(([name]) => values[name] !== "").map(([name, { type }]) => [name, type === "number" || type === "integer" ? Number(values[name]) : values[name]]);
    send(isUrl ? { decision: "allow" } : { decision: "answer", answers: Object.fromEntries(filled) });
  };
  const missing = required.some((name) => values[toText(name)] === "");
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !busy && !missing) (event.preventDefault(), accept());
  };
  const message = toText(request.message);
  return html`<${Keys} isActive=${isActive} table=${{ d: ["Decline", () => send({ decision: "deny" })] }} />
    <p class="hint">From the MCP server ${reveal(ask.server)}</p>
    ${message.length > MAX_TITLE && html`<${Code} text=${message} label="Message" prose />`}
    ${isUrl && html`<p>It asks you to open <code>${reveal(request.url)}</code></p>`}
    <div onKeyDown=${onKeyDown}>${fields.map(([name, field]) => html`<label class="field"><span>${reveal(field.title ?? name)}${required.includes(name) ? "" : " (optional)"}</span>
      ${Array.isArray(field.enum) ? html`<select value=${values[name]} onChange=${(/** @type {any} */ event) => set(name, event.target.value)}><option value="">Choose …</option>${field.enum.map((/** @type {unknown} */ each) => html`<option value=${toText(each)}>${reveal(each)}</option>`)}</select>`
        : field.type === "boolean" ? html`<input type="checkbox" checked=${values[name]} onChange=${(/** @type {any} */ event) => set(name, event.target.checked)} />`
        : html`<input type=${field.type === "number" || field.type === "integer" ? "number" : "text"} value=${values[name]} onInput=${(/** @type {any} */ event) => set(name, event.target.value)} />`}
      ${reveal(values[name]) !== toText(values[name]) && html`<small>The field contains: <code>${reveal(values[name])}</code></small>`}
      ${field.description && html`<small>${reveal(field.description)}</small>`}</label>`)}</div>
    <div class="actions"><button class="primary" disabled=${busy || missing} onClick=${accept}>${isUrl ? "Open" : "Send"}</button>
      <button class="danger" disabled=${busy} onClick=${() => send({ decision: "deny" })}>Decline <kbd>d</kbd></button></div>`;
}

/** @type {Record<string, (props: FormProps) => any>} */
const FORMS = { permission: Permission, question: Question, plan: Plan, elicitation: Elicitation };
