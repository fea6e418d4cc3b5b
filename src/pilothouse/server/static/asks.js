/** Asks: what waits for a person, settled in place. */

import { ToolInput, toolLabel } from "./calls.js";
import { Markdown } from "./markdown.js";
import { directoryOf, settle, store, titleOf } from "./store.js";
import { formatAge, shortPath, useKeys } from "./ui.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

/** @typedef {import("./store.js").Ask} Ask */

/** @type {Record<string, string>} */
const KIND_WORDS = { permission: "Permission", question: "Question", plan: "Plan", elicitation: "Form" };

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
  return html`<article ref=${ref} class=${`ask ${isActive ? "active" : ""}`} aria-label=${ask.title} onPointerDown=${onActivate} onFocusIn=${onActivate}>
    <header>
      <span class=${`chip kind ${ask.kind}`}>${KIND_WORDS[ask.kind] ?? ask.kind}</span>
      ${withSession && html`<a href=${`#/sessions/${ask.session}`}>${titleOf(session)}</a>`}
      ${withSession && session && html`<span class="where">${shortPath(directoryOf(session))}</span>`}
      ${ask.restored && html`<span class="chip">asked before the host was restarted</span>`}
      <time>${formatAge(ask.asked_at)}${ask.expires_at ? `, ${formatLeft(ask.expires_at)}` : ""}</time>
    </header>
    <h2>${ask.title}</h2>
    <${Form} ask=${ask} send=${send} busy=${busy} isActive=${isActive} />
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </article>`;
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

/** @param {{table: Record<string, [string, () => void]>}} props */
function BoundKeys({ table }) {
  useKeys("The chosen request", table);
  return null;
}

/** @param {FormProps} props */
function Permission({ ask, send, busy, isActive }) {
  const [denying, setDenying] = useState(false);
  const { request } = ask;
  const rules = (request.permission_suggestions ?? []).map(describeRule).filter(Boolean).join(" · ");
  const allow = () => send({ decision: "allow" });
  const always = () => send({ decision: "allow", always: true });
  const minutes = () => send({ decision: "allow", minutes: 15 });
  /** @type {Record<string, [string, () => void]>} */
  const table = { a: ["Allow", allow], d: ["Deny, with a reason", () => setDenying(true)] };
  if (ask.can_always_allow) table.A = ["Allow always in this session", always];
  if (ask.can_allow_for_minutes) table.m = ["Allow for 15 minutes", minutes];
  return html`<${Keys} isActive=${isActive} table=${table} />
    <div class="ask-body"><span class="tool-name">${toolLabel(ask.tool ?? "")}</span><${ToolInput} name=${ask.tool ?? ""} input=${request.input} />
      ${request.decision_reason && html`<p class="hint">${request.decision_reason}</p>`}
      ${request.blocked_path && html`<p class="hint">Needs <code>${request.blocked_path}</code></p>`}</div>
    ${denying ? html`<${ReasonField} label="Why not? The model reads it." action="Deny" busy=${busy} onSend=${(/** @type {string} */ reason) => send({ decision: "deny", reason })} onCancel=${() => setDenying(false)} />`
      : html`<div class="actions"><button class="primary" disabled=${busy} onClick=${allow}>Allow <kbd>a</kbd></button>
        <button class="danger" disabled=${busy} onClick=${() => setDenying(true)}>Deny <kbd>d</kbd></button>
        ${ask.can_always_allow && html`<button disabled=${busy} title=${rules} onClick=${always}>Always <kbd>A</kbd></button>`}
        ${ask.can_allow_for_minutes && html`<button disabled=${busy} onClick=${minutes}>15 minutes <kbd>m</kbd></button>`}</div>`}
    ${ask.can_always_allow && rules && !denying && html`<p class="hint always">Always: ${rules}</p>`}`;
}

/** @param {any} change */
function describeRule(change) {
  if (change.type === "addRules") return change.rules.map((/** @type {any} */ rule) => (rule.ruleContent ? `${rule.toolName}(${rule.ruleContent})` : rule.toolName)).join(", ");
  if (change.type === "addDirectories") return `work in ${change.directories.join(", ")}`;
  if (change.type === "setMode") return change.mode === "acceptEdits" ? "accept edits" : `mode ${change.mode}`;
  return "";
}

/** @param {FormProps} props */
function Question({ ask, send, busy, isActive }) {
  /** @type {any[]} */
  const questions = ask.request.input?.questions ?? [];
  const [chosen, setChosen] = useState(/** @type {Record<string, string[]>} */ ({}));
  const [other, setOther] = useState(/** @type {Record<string, string>} */ ({}));
  const choose = (/** @type {any} */ question, /** @type {string} */ label) => {
    const before = chosen[question.question] ?? [];
    const without = before.filter((each) => each !== label);
    const next = question.multiSelect ? (without.length < before.length ? without : [...before, label]) : [label];
    setChosen({ ...chosen, [question.question]: next });
  };
  const answerOf = (/** @type {any} */ { question }) => [...(chosen[question] ?? []), ...(other[question]?.trim() ? [other[question].trim()] : [])].join(", ");
  const isComplete = questions.every((question) => answerOf(question));
  const answer = () => isComplete && send({ decision: "answer", answers: Object.fromEntries(questions.map((question) => [question.question, answerOf(question)])) });
  const first = questions.find((question) => !answerOf(question)) ?? questions[0];
  /** @type {Record<string, [string, () => void]>} */
  const table = { Enter: ["Send the answers", answer], d: ["Decline to answer", () => send({ decision: "deny" })] };
  (first?.options ?? []).forEach((/** @type {any} */ option, /** @type {number} */ at) => {
    table[String(at + 1)] = [`Choose the option with this number`, () => choose(first, option.label)];
  });
  return html`<${Keys} isActive=${isActive} table=${table} />
    ${questions.map((question, number) => html`<fieldset><legend class=${questions.length === 1 && question.question === ask.title ? "hidden" : ""}>${question.question}${question.multiSelect ? html` <span class="hint">several may apply</span>` : ""}</legend>
      ${(question.options ?? []).map((/** @type {any} */ option, /** @type {number} */ at) => html`<label class="option">
        <input type=${question.multiSelect ? "checkbox" : "radio"} name=${`${ask.id}-${number}`} checked=${(chosen[question.question] ?? []).includes(option.label)} onChange=${() => choose(question, option.label)} />
        <span><b>${option.label}</b>${option.description && html`<small>${option.description}</small>`}</span>${question === first && html`<kbd>${at + 1}</kbd>`}</label>`)}
      <input class="other" aria-label=${`Other answer: ${question.question}`} placeholder="Something else …" value=${other[question.question] ?? ""}
        onInput=${(/** @type {any} */ event) => setOther({ ...other, [question.question]: event.target.value })}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && answer()} /></fieldset>`)}
    <div class="actions"><button class="primary" disabled=${busy || !isComplete} onClick=${answer}>Answer <kbd>↵</kbd></button>
      <button class="danger" disabled=${busy} onClick=${() => send({ decision: "deny" })}>Decline <kbd>d</kbd></button></div>`;
}

/** @param {FormProps} props */
function Plan({ ask, send, busy, isActive }) {
  const [changing, setChanging] = useState(false);
  const approve = () => send({ decision: "allow" });
  return html`<${Keys} isActive=${isActive} table=${{ a: ["Approve the plan", approve], d: ["Say what to change", () => setChanging(true)] }} />
    <div class="ask-body plan"><${Markdown} text=${String(ask.request.input?.plan || "Claude Code has sent no plan; the session shows what it said.")} /></div>
    ${changing ? html`<${ReasonField} label="What should change?" action="Send back" busy=${busy} onCancel=${() => setChanging(false)}
        onSend=${(/** @type {string} */ text) => send(text.trim() ? { decision: "answer", answers: text } : { decision: "deny" })} />`
      : html`<div class="actions"><button class="primary" disabled=${busy} onClick=${approve}>Approve <kbd>a</kbd></button>
        <button class="danger" disabled=${busy} onClick=${() => setChanging(true)}>Change … <kbd>d</kbd></button></div>`}`;
}

/** @param {FormProps} props */
function Elicitation({ ask, send, busy, isActive }) {
  const { request } = ask;
  const schema = request.requested_schema ?? request.requestedSchema ?? {};
  const fields = Object.entries(/** @type {Record<string, any>} */ (schema.properties ?? {}));
  const [values, setValues] = useState(/** @type {Record<string, any>} */ (Object.fromEntries(fields.map(([name, field]) => [name, field.default ?? (field.type === "boolean" ? false : "")]))));
  const set = (/** @type {string} */ name, /** @type {any} */ value) => setValues((known) => ({ ...known, [name]: value }));
  const isUrl = request.mode === "url";
  const accept = () => {
    const filled = fields.filter(([name]) => values[name] !== "").map(([name, { type }]) => [name, type === "number" || type === "integer" ? Number(values[name]) : values[name]]);
    send(isUrl ? { decision: "allow" } : { decision: "answer", answers: Object.fromEntries(filled) });
  };
  const missing = (schema.required ?? []).some((/** @type {string} */ name) => values[name] === "");
  return html`<${Keys} isActive=${isActive} table=${{ d: ["Decline", () => send({ decision: "deny" })] }} />
    <p class="hint">From the MCP server ${ask.server}</p>
    ${isUrl && html`<p>It wants to open <code>${request.url}</code></p>`}
    ${fields.map(([name, field]) => html`<label class="field"><span>${field.title ?? name}${(schema.required ?? []).includes(name) ? "" : " (optional)"}</span>
      ${field.enum ? html`<select value=${values[name]} onChange=${(/** @type {any} */ event) => set(name, event.target.value)}><option value="">Choose …</option>${field.enum.map((/** @type {string} */ each) => html`<option value=${each}>${each}</option>`)}</select>`
        : field.type === "boolean" ? html`<input type="checkbox" checked=${values[name]} onChange=${(/** @type {any} */ event) => set(name, event.target.checked)} />`
        : html`<input type=${field.type === "number" || field.type === "integer" ? "number" : "text"} value=${values[name]} onInput=${(/** @type {any} */ event) => set(name, event.target.value)} />`}
      ${field.description && html`<small>${field.description}</small>`}</label>`)}
    <div class="actions"><button class="primary" disabled=${busy || missing} onClick=${accept}>${isUrl ? "Open" : "Send"}</button>
      <button class="danger" disabled=${busy} onClick=${() => send({ decision: "deny" })}>Decline <kbd>d</kbd></button></div>`;
}

/** @type {Record<string, (props: FormProps) => any>} */
const FORMS = { permission: Permission, question: Question, plan: Plan, elicitation: Elicitation };
