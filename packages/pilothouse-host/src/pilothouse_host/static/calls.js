/** Tool calls: a line that folds, with what was given and what came of it. */

import { Diff, countLines, listHunks } from "./diff.js";
import { AGENT_TOOLS, EDIT_TOOLS } from "./fold.js";
import { Markdown } from "./markdown.js";
import { useStore } from "./store.js";
import { listObjects, reveal, toText } from "./text.js";
import { Code, Icon, shortPath } from "./ui.js";
import { html, useMemo, useState } from "./vendor/htm-preact.js";

/** @type {Record<string, string>} */
const TOOL_ICONS = {
  Bash: "terminal", Edit: "edit", MultiEdit: "edit", Write: "file", NotebookEdit: "edit", Read: "file", Grep: "search", Glob: "search",
  WebFetch: "globe", WebSearch: "globe", Task: "robot", Agent: "robot", ToolSearch: "search",
};
/** @type {Record<string, string[]>} fields that the view of a change draws; all others are listed below it */
const DRAWN = { Edit: ["file_path", "old_string", "new_string"], MultiEdit: ["file_path", "edits"], Write: ["file_path", "content"], NotebookEdit: ["notebook_path", "new_source"] };
const MAX_FIELDS = 100;
const MAX_FIELD_NAME = 100;
const MAX_PARTIAL = 6000;

/** The tool's name for people. @param {string} name */
export function toolLabel(name) {
  const parts = name.split("__");
  return reveal(parts[0] === "mcp" && parts.length > 2 ? `${parts[1]}: ${parts.slice(2).join("__")}` : name);
}

/** What a call is about, in one line. @param {any} input */
export function summarize(input) {
  if (!input || typeof input !== "object") return "";
  const first = ["command", "file_path", "notebook_path", "pattern", "url", "query", "description", "prompt", "skill", "plan"];
  const name = first.find((each) => typeof input[each] === "string") ?? Object.keys(input).find((each) => typeof input[each] === "string");
  if (!name) return "";
  const text = name.endsWith("_path") ? shortPath(input[name]) : input[name];
  return reveal(text.slice(0, 160).split("\n")[0]);
}

/** What a tool is given: a diff, a command, or its fields. Nothing of it is left out. @param {{name: string, input: any, outcome?: any}} props */
export function ToolInput({ name, input, outcome }) {
  if (!input || typeof input !== "object" || Array.isArray(input)) return html`<${Code} text=${input} label="Input" />`;
  if (Object.hasOwn(DRAWN, name)) return html`<${ChangeInput} name=${name} input=${input} outcome=${outcome} />`;
  const main = ["command", "prompt", "plan"].find((each) => typeof input[each] === "string");
  if (!main) return html`<${Fields} input=${input} />`;
  const { [main]: text, ...others } = input;
  return html`<${Code} text=${text} label=${main === "command" ? "Command" : "Text"} prose=${main !== "command"} /><${Fields} input=${others} />`;
}

/** @param {{name: string, input: any, outcome?: any}} props */
function ChangeInput({ name, input, outcome }) {
  const hunks = useMemo(() => listHunks(name, input, outcome), [name, input, outcome]);
  const path = reveal(input.file_path ?? input.notebook_path);
  const { added, removed } = countLines(hunks);
  return html`<div class="path-line"><${Icon} name="file" /><code>${path}</code><span class="counts"><b class="plus">+${added}</b> <b class="minus">−${removed}</b></span></div>
    <${Diff} hunks=${hunks} label=${`Changes to ${path}`} /><${Fields} input=${omitDrawn(name, input)} />`;
}

/** The fields that the diff does not show, such as `replace_all`. @param {string} name @param {any} input */
function omitDrawn(name, input) {
  const drawn = DRAWN[name] ?? [];
  const others = Object.fromEntries(Object.entries(input).filter(([field, value]) => (drawn.includes(field) ? typeof value !== "string" && field !== "edits" : !isUsual(field, value))));
  if (!drawn.includes("edits")) return others;
  const edits = listObjects(input.edits);
  if (!Array.isArray(input.edits) || edits.length < input.edits.length) return { ...others, edits: input.edits };
  const rest = edits.map(({ old_string, new_string, ...more }, at) => [`edits[${at}]`, more]);
  return { ...others, ...Object.fromEntries(rest.filter(([, more]) => Object.entries(more).some(([field, value]) => !isUsual(field, value)))) };
}

/** Claude Code writes it into each change; the diff means the same. @param {string} field @param {unknown} value */
function isUsual(field, value) {
  return field === "replace_all" && value === false;
}

/** @param {{input: any}} props */
function Fields({ input }) {
  const [all, setAll] = useState(false);
  const fields = Object.entries(input);
  if (!fields.length) return null;
  if (fields.some(([field]) => field.length > MAX_FIELD_NAME)) return html`<${Code} text=${input} label="Fields" />`;
  const shown = all ? fields : fields.slice(0, MAX_FIELDS);
  return html`<dl class="fields">${shown.map(([field, value]) => html`<dt>${reveal(field)}</dt>
    <dd>${isShort(value) ? html`<code>${reveal(String(value))}</code>` : html`<${Code} text=${value} label=${reveal(field)} />`}</dd>`)}</dl>
    ${shown.length < fields.length && html`<button class="small more" onClick=${() => setAll(true)}>Show all ${fields.length.toLocaleString()} fields</button>`}`;
}

/** @param {unknown} value */
function isShort(value) {
  return typeof value === "string" ? value.length < 200 && !value.includes("\n") : value === null || typeof value !== "object";
}

/** @param {import("./fold.js").Item} item @returns {"running" | "failed" | "done"} */
function stateOfCall(item) {
  if (!item.done || item.task === "running") return "running";
  return item.failed || item.task === "failed" || item.task === "killed" ? "failed" : "done";
}

const CALL_WORDS = { running: "running", waiting: "waiting for a decision", failed: "failed", done: "done" };
const CALL_ICONS = { waiting: "inbox", failed: "close", done: "check" };

/** How a call is going. @param {{state: keyof typeof CALL_WORDS}} props */
function Mark({ state }) {
  return html`<span class=${`mark ${state}`} role="img" aria-label=${CALL_WORDS[state]}>${state === "running" ? html`<i class="spinner"></i>` : html`<${Icon} name=${CALL_ICONS[state]} />`}</span>`;
}

/** Of a call that has no outcome yet: whether somebody has to decide. @param {{call: string}} props */
function OpenMark({ call }) {
  const waits = [...useStore().asks.values()].some((ask) => ask.request?.tool_use_id === call);
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
      <span class="what">${summarize(isAgent ? { description: toText(item.input?.description) } : item.input)}</span>
      ${isAgent && children.length > 0 && html`<span class="count">${children.length} ${children.length === 1 ? "step" : "steps"}</span>`}
      ${item.done ? html`<${Mark} state=${state} />` : html`<${OpenMark} call=${item.call} />`}
    </summary>
    ${open && html`<div class="call-body">
      ${item.partial !== undefined && !item.done ? html`<pre class="partial">${reveal(item.partial.slice(-MAX_PARTIAL))}</pre>` : html`<${ToolInput} name=${name} input=${item.input} outcome=${item.detail} />`}
      ${children.length > 0 && html`<div class="tree">${children.map(renderItem)}</div>`}
      ${item.images.map((image) => html`<img class="picture" src=${image} alt="Output of the tool" />`)}
      ${item.text && (isAgent ? children.at(-1)?.text !== item.text && html`<${Markdown} text=${reveal(item.text)} />` : !(EDIT_TOOLS.has(name) && !item.failed) && html`<${Code} text=${item.text} label="Output" />`)}
    </div>`}
  </details>`;
}
