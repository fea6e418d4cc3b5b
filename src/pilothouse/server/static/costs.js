/** Costs and tokens: by day, model, project and session, beside a budget that the user sets. */

import { call } from "./api.js";
import { store, titleOf, useStore } from "./store.js";
import { Empty, formatAge, formatCost, formatTokens, shortPath } from "./ui.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";

/** @typedef {{input_tokens: number, output_tokens: number, cache_creation_tokens: number, cache_read_tokens: number, cost_usd: number, unpriced_tokens: number, messages: number}} Totals */

const BUDGET_KEY = "pilothouse.budget";
const SPANS = [[7, "7 days"], [30, "30 days"], [90, "90 days"]];

/** @param {Totals} totals */
function countTokens(totals) {
  return totals.input_tokens + totals.output_tokens + totals.cache_creation_tokens + totals.cache_read_tokens;
}

/** @param {Date} day */
function formatDay(day) {
  return `${day.getFullYear()}-${String(day.getMonth() + 1).padStart(2, "0")}-${String(day.getDate()).padStart(2, "0")}`;
}

/** @param {number} days @returns {string[]} the last days, as in a report */
function listDays(days) {
  const today = new Date();
  return Array.from({ length: days }, (_, at) => formatDay(new Date(today.getFullYear(), today.getMonth(), today.getDate() - days + 1 + at)));
}

export function Costs() {
  useStore();
  const [span, setSpan] = useState(30);
  const [report, setReport] = useState(/** @type {any} */ (null));
  const [month, setMonth] = useState(/** @type {number | null} */ (null));
  const [problem, setProblem] = useState("");
  const days = listDays(span);
  useEffect(() => {
    call("GET", `v1/usage?since=${days[0]}`).then(setReport, (error) => setProblem(error.message));
    call("GET", `v1/usage?since=${formatDay(new Date()).slice(0, 8)}01`).then((found) => setMonth(found.total.cost_usd), () => undefined);
  }, [span]);
  if (problem) return html`<main tabindex="-1" class="page"><h1>Costs</h1><p class="problem" role="alert">${problem}</p></main>`;
  const byTokens = report && !report.total.cost_usd;
  return html`<main tabindex="-1" class="page costs"><header class="page-head"><h1>Costs</h1>
      <div class="segments" role="group" aria-label="Time">${SPANS.map(([count, label]) => html`<button aria-pressed=${span === count} onClick=${() => setSpan(Number(count))}>${label}</button>`)}</div></header>
    ${!report && html`<p class="hint" role="status">Counting …</p>`}
    ${report && !report.total.messages && html`<${Empty} icon="coin" title="Nothing was used in this time"><p>What the sessions on this machine use is counted here, by day, model, project and session.</p><//>`}
    ${report && report.total.messages > 0 && html`
      <div class="figures"><${Figure} label="Cost" value=${byTokens && report.total.unpriced_tokens ? "–" : formatCost(report.total.cost_usd)} />
        <${Figure} label="Tokens" value=${formatTokens(countTokens(report.total))} />
        <${Figure} label="Read from the cache" value=${`${Math.round((100 * report.total.cache_read_tokens) / Math.max(1, countTokens(report.total) - report.total.output_tokens))}%`} />
        <${Budget} spent=${month} /></div>
      ${report.total.unpriced_tokens > 0 && html`<p class="hint">Claude Code has recorded no price yet for ${formatTokens(report.total.unpriced_tokens)} of these tokens; their cost is not counted.</p>`}
      <section><h2>${byTokens ? "Tokens a day" : "Dollars a day"}</h2><${DayPlot} days=${days} values=${days.map((day) => valueOf(report.days[day], byTokens))} byTokens=${byTokens} /></section>
      <div class="columns"><${Table} title="Models" rows=${listModels(report)} /><${Table} title="Projects" rows=${groupByProject(report)} /></div>
      <${Table} title="Sessions" rows=${listSessions(report)} limit=${12} />`}
  </main>`;
}

/** @param {Totals | undefined} totals @param {boolean} byTokens */
function valueOf(totals, byTokens) {
  return totals ? (byTokens ? countTokens(totals) : totals.cost_usd) : 0;
}

/** @param {{label: string, value: string}} props */
function Figure({ label, value }) {
  return html`<div class="figure"><span class="label">${label}</span><span class="value">${value}</span></div>`;
}

/** Dollars of this month beside a limit, which this browser keeps. @param {{spent: number | null}} props */
function Budget({ spent }) {
  const [limit, setLimit] = useState(Number(localStorage.getItem(BUDGET_KEY) ?? 0));
  const [editing, setEditing] = useState(false);
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    const value = Number(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("limit")) || 0;
    localStorage.setItem(BUDGET_KEY, String(value));
    setLimit(value);
    setEditing(false);
  };
  const share = limit && spent !== null ? spent / limit : 0;
  if (editing) return html`<form class="figure" onSubmit=${save}><label class="label" for="limit">Budget a month, in dollars</label><span class="inline"><input id="limit" name="limit" type="number" min="0" step="any" autofocus value=${limit || ""} /><button>Save</button></span></form>`;
  return html`<div class=${`figure ${share > 1 ? "over" : ""}`}><span class="label">This month</span><span class="value">${formatCost(spent) || "…"}</span>
    ${limit > 0 && html`<meter min="0" max="1" high="0.8" value=${Math.min(1, share)} aria-label="Share of the budget"></meter>`}
    <button class="ghost small" onClick=${() => setEditing(true)}>${limit ? `${Math.round(share * 100)}% of ${formatCost(limit)}` : "Set a budget"}</button></div>`;
}

/** @typedef {{name: string, href?: string, tokens: number, cost: number, time?: number}} CostRow */

/** @param {any} report @returns {CostRow[]} */
function listModels(report) {
  return sortRows(Object.entries(report.models).map(([name, totals]) => ({ name, tokens: countTokens(totals), cost: totals.cost_usd })));
}

/** @param {any} report @returns {CostRow[]} */
function listSessions(report) {
  const live = new Map([...store.sessions.values()].map((session) => [session.conversation, session]));
  return sortRows(report.sessions.map((/** @type {any} */ totals) => {
    const session = live.get(totals.session_id);
    const transcript = store.transcripts.get(totals.session_id);
    return {
      name: session ? titleOf(session) : (transcript?.summary ?? totals.session_id), tokens: countTokens(totals), cost: totals.cost_usd || (session?.last_result?.session_cost_usd ?? 0),
      href: session ? `#/sessions/${session.id}` : `#/transcripts/${totals.session_id}`, time: transcript?.last_modified / 1000,
    };
  }));
}

/** @param {any} report @returns {CostRow[]} */
function groupByProject(report) {
  /** @type {Map<string, CostRow>} */
  const rows = new Map();
  for (const totals of report.sessions) {
    const name = store.transcripts.get(totals.session_id)?.cwd ?? totals.path.split("/").at(-2);
    const row = rows.get(name) ?? { name, tokens: 0, cost: 0 };
    rows.set(name, { ...row, tokens: row.tokens + countTokens(totals), cost: row.cost + totals.cost_usd });
  }
  return sortRows([...rows.values()].map((row) => ({ ...row, name: shortPath(row.name) })));
}

/** @param {CostRow[]} rows */
function sortRows(rows) {
  return rows.sort((one, other) => other.cost - one.cost || other.tokens - one.tokens);
}

/** @param {{title: string, rows: CostRow[], limit?: number}} props */
function Table({ title, rows, limit = 8 }) {
  const [all, setAll] = useState(false);
  const most = Math.max(...rows.map((row) => row.cost || 0)) || Math.max(1, ...rows.map((row) => row.tokens));
  const hasCost = rows.some((row) => row.cost > 0);
  return html`<section class="cost-table"><h2>${title}</h2><table><thead class="hidden"><tr><th>Name</th><th>Tokens</th><th>Cost</th></tr></thead>
    <tbody>${(all ? rows : rows.slice(0, limit)).map((row) => html`<tr><td><progress class="bar" max=${most} value=${hasCost ? row.cost : row.tokens} aria-hidden="true"></progress>
      ${row.href ? html`<a href=${row.href}>${row.name}</a>` : html`<span>${row.name}</span>`}${row.time ? html` <time>${formatAge(row.time)}</time>` : ""}</td>
      <td>${formatTokens(row.tokens)}</td><td>${row.cost ? formatCost(row.cost) : "–"}</td></tr>`)}</tbody></table>
    ${rows.length > limit && !all && html`<button class="small" onClick=${() => setAll(true)}>Show all ${rows.length}</button>`}</section>`;
}

/** @type {Promise<any> | undefined} */
let library;

/**
 * Which days get a label, so that labels do not touch; the last one always has one.
 * @param {string[]} days @param {number} width in pixels @returns {number[]} indices of days
 */
export function chooseTicks(days, width) {
  const step = Math.max(1, Math.ceil((days.length * 64) / width));
  return days.map((_, at) => at).filter((at) => (days.length - 1 - at) % step === 0);
}

/** The plotting library, loaded when a plot is first shown. @returns {Promise<any>} */
function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("vendor/uplot.js", import.meta.url).href;
    script.onload = () => resolve(/** @type {any} */ (globalThis).uPlot);
    script.onerror = reject;
    document.head.append(script);
  });
  return library;
}

/** Bars, one a day. @param {{days: string[], values: number[], byTokens: boolean}} props */
function DayPlot({ days, values, byTokens }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const format = (/** @type {number} */ value) => (byTokens ? formatTokens(value) : formatCost(value));
  useEffect(() => {
    let plot = /** @type {any} */ (null);
    let current = true;
    const draw = async () => {
      const uPlot = await loadLibrary();
      const element = box.current;
      if (!current || !element) return;
      plot?.destroy();
      const style = getComputedStyle(element);
      const [soft, line, accent] = ["--soft-now", "--line-now", "--accent-now"].map((name) => readColour(element, name));
      const axis = { stroke: soft, font: `12px ${style.fontFamily}`, grid: { stroke: line, width: 1 }, ticks: { show: false } };
      const times = days.map((day) => new Date(`${day}T12:00:00`).getTime() / 1000);
      plot = new uPlot({
        width: element.clientWidth, height: 200, legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { range: [(times.at(0) ?? 0) - 43200, (times.at(-1) ?? 0) + 43200] }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most * 1.1 || 1] } },
        axes: [{ ...axis, size: 28, grid: { show: false }, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((at) => new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" })),
          splits: (/** @type {any} */ shown) => chooseTicks(days, shown.bbox.width / devicePixelRatio).map((at) => times[at]) },
          { ...axis, size: 56, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map(format) }],
        series: [{}, { fill: accent, stroke: accent, width: 0, paths: uPlot.paths.bars({ size: [0.7, 28], radius: 0.15 }), points: { show: false } }],
        hooks: { setCursor: [(/** @type {any} */ shown) => {
          const at = shown.cursor.idx;
          const label = element.parentElement?.querySelector("output");
          if (label) label.textContent = at === null || at === undefined ? "" : `${days[at]}: ${format(values[at] ?? 0)}`;
        }] },
      }, [times, values], element);
    };
    draw();
    const observer = new ResizeObserver(() => plot?.setSize({ width: box.current?.clientWidth ?? 300, height: 200 }));
    if (box.current) observer.observe(box.current);
    const scheme = new MutationObserver(draw);
    scheme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      current = false;
      observer.disconnect();
      scheme.disconnect();
      plot?.destroy();
    };
  }, [values.join(" "), byTokens]);
  const highest = values.indexOf(Math.max(...values));
  return html`<div class="plot-box"><output></output><div class="plot" ref=${box} role="img" aria-label=${`The highest day is ${days[highest]} with ${format(values[highest] ?? 0)}`}></div></div>`;
}

/** The colour that a variable has now: a canvas does not know `light-dark()`. @param {HTMLElement} element @param {string} name */
function readColour(element, name) {
  const probe = document.createElement("i");
  probe.className = name.slice(2);
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
