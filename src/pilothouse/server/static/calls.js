/** Tool calls: a line that folds, with what was given and what came of it. */

import { Diff, countLines, listHunks } from "./diff.js";
import { AGENT_TOOLS, EDIT_TOOLS } from "./fold.js";
import { Markdown } from "./markdown.js";
import { useStore } from "./store.js";
import { Copy, Icon, reveal, shortPath } from "./ui.js";
import { html, useMemo, useState } from "./vendor/htm-preact.js";

/** @type {Record<string, string>} */
const TOOL_ICONS = {
  Bash: "terminal", Edit: "edit", MultiEdit: "edit", Write: "file", NotebookEdit: "edit", Read: "file", Grep: "search", Glob: "search",
  WebFetch: "globe", WebSearch: "globe", Task: "robot", Agent: "robot", ToolSearch: "search",
};
const MAX_SHOWN = 6000;

/** The tool's name for people. @param {string} name */
export function toolLabel(name) {
  const parts = name.split("__");
  return parts[0] === "mcp" && parts.length > 2 ? `${parts[1]}: ${parts.slice(2).join("__")}` : name;
}

/** What a call is about, in one line. @param {any} input */
export function summarize(input) {
  if (!input || typeof input !== "object") return "";
  const first = ["command", "file_path", "notebook_path", "pattern", "url", "query", "description", "prompt", "skill", "plan"];
  const name = first.find((each) => typeof input[each] === "string") ?? Object.keys(input).find((each) => typeof input[each] === "string");
  if (!name) return "";
  const text = name.endsWith("_path") ? shortPath(input[name]) : input[name];
  return text.split("\n")[0].slice(0, 160);
}

/** @param {{text: string, label: string}} props */
export function Code({ text, label }) {
  const [all, setAll] = useState(false);
  const shown = all || text.length <= MAX_SHOWN ? text : text.slice(0, MAX_SHOWN);
  return html`<div class="code-box"><pre tabindex="0" role="region" aria-label=${label}>${shown}</pre><${Copy} text=${text} />
    ${shown.length < text.length && html`<button class="small" onClick=${() => setAll(true)}>Show all ${text.length.toLocaleString()} characters</button>`}</div>`;
}

/** What a tool is given: a diff, a command, or its fields. @param {{name: string, input: any, outcome?: any}} props */
export function ToolInput({ name, input, outcome }) {
  const hunks = useMemo(() => (EDIT_TOOLS.has(name) ? listHunks(name, input, outcome) : []), [name, input, outcome]);
  if (EDIT_TOOLS.has(name)) {
    const path = String(input?.file_path ?? input?.notebook_path ?? "");
    const { added, removed } = countLines(hunks);
    return html`<div class="path-line"><${Icon} name="file" /><code>${reveal(path)}</code><span class="counts"><b class="plus">+${added}</b> <b class="minus">−${removed}</b></span></div>
      <${Diff} hunks=${hunks} label=${`Changes of ${path}`} />`;
  }
  if (typeof input?.command === "string") {
    const { command, description, timeout, ...others } = input;
    return html`<${Code} text=${reveal(command)} label="Command" /><${Fields} input=${others} />`;
  }
  if (AGENT_TOOLS.has(name)) return html`<${Markdown} text=${String(input?.prompt ?? "")} />`;
  if (name === "ExitPlanMode" && typeof input?.plan === "string") return html`<${Markdown} text=${input.plan} />`;
  return html`<${Fields} input=${input ?? {}} />`;
}

/** @param {{input: any}} props */
function Fields({ input }) {
  const fields = Object.entries(input);
  if (!fields.length) return null;
  return html`<dl class="fields">${fields.map(([field, value]) => html`<dt>${reveal(field)}</dt>
    <dd>${typeof value === "string" && value.length < 200 && !value.includes("\n") ? html`<code>${reveal(value)}</code>`
      : html`<${Code} text=${reveal(typeof value === "string" ? value : JSON.stringify(value, null, 2))} label=${field} />`}</dd>`)}</dl>`;
}

/** @param {import("./fold.js").Item} item @returns {"running" | "failed" | "done"} */
function stateOfCall(item) {
  if (!item.done || item.task === "running") return "running";
  return item.failed || item.task === "failed" || item.task === "killed" ? "failed" : "done";
}

const CALL_WORDS = { running: "runs", waiting: "waits for a decision", failed: "failed", done: "done" };
const CALL_ICONS = { waiting: "inbox", failed: "close", done: "check" };

/** How a call is going. @param {{state: keyof typeof CALL_WORDS}} props */
function Mark({ state }) {
  return html`<span class=${`mark ${state}`} role="img" aria-label=${CALL_WORDS[state]}>${state === "running" ? html`<i class="spinner"></i>` : html`<${Icon} name=${CALL_ICONS[state]} />`}</span>`;
}

/** Of a call that has no outcome yet: whether somebody has to decide. @param {{call: string}} props */
function OpenMark({ call }) {
  const waits = [...useStore().asks.values()].some((ask) => ask.request.tool_use_id === call);
  return html`<${Mark} state=${waits ? "waiting" : "running"} />`;
}

/** @param {{item: import("./fold.js").Item, version: number, renderItem: (item: import("./fold.js").Item) => any, isOpen?: boolean}} props */
export function ToolCall({ item, renderItem, isOpen }) {
  const name = item.name ?? "";
  const isAgent = AGENT_TOOLS.has(name);
  const [open, setOpen] = useState(isOpen ?? false);
  const state = stateOfCall(item);
  const children = item.children ?? [];
  return html`<details class=${`call ${state}`} open=${open} onToggle=${(/** @type {any} */ event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
    <summary><${Icon} name=${TOOL_ICONS[name] ?? "tool"} /><b>${toolLabel(name)}</b>
      <span class="what">${isAgent ? (item.input?.description ?? "") : summarize(item.input)}</span>
      ${isAgent && children.length > 0 && html`<span class="count">${children.length} ${children.length === 1 ? "step" : "steps"}</span>`}
      ${item.done ? html`<${Mark} state=${state} />` : html`<${OpenMark} call=${item.call} />`}
    </summary>
    ${open && html`<div class="call-body">
      ${item.partial !== undefined && !item.done ? html`<pre class="partial">${item.partial}</pre>` : html`<${ToolInput} name=${name} input=${item.input} outcome=${item.detail} />`}
      ${children.length > 0 && html`<div class="tree">${children.map(renderItem)}</div>`}
      ${item.images.map((image) => html`<img class="picture" src=${image} alt="Outcome of the tool" />`)}
      ${item.text && (isAgent ? children.at(-1)?.text !== item.text && html`<${Markdown} text=${item.text} />` : !(EDIT_TOOLS.has(name) && !item.failed) && html`<${Code} text=${item.text} label="Outcome" />`)}
    </div>`}
  </details>`;
}
