/** Costs and tokens: by day, model, project and session. */

import { call } from "./api.js";
import { store, titleOf, useStore } from "./store.js";
import { Empty, formatAge, formatCost, formatTokens, shortPath } from "./ui.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

/** @typedef {{input_tokens: number, output_tokens: number, cache_creation_tokens: number, cache_read_tokens: number, cost_usd: number, unpriced_tokens: number, messages: number}} Totals */

const SPANS = [[7, "7 days"], [30, "30 days"], [90, "90 days"]];

/** @param {Totals} totals */
export function countTokens(totals) {
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
  const [problem, setProblem] = useState("");
  const days = listDays(span);
  useEffect(() => {
    call("GET", `v1/usage?since=${days[0]}`).then(setReport, (error) => setProblem(error.message));
  }, [span]);
  if (problem) return html`<main tabindex="-1" class="page"><h1>Costs</h1><p class="problem" role="alert">${problem}</p></main>`;
  const byTokens = report && !report.total.cost_usd;
  return html`<main tabindex="-1" class="page costs"><header class="page-head"><h1>Costs</h1>
      <div class="segments" role="group" aria-label="Period">${SPANS.map(([count, label]) => html`<button aria-pressed=${span === count} onClick=${() => setSpan(Number(count))}>${label}</button>`)}</div></header>
    ${!report && html`<p class="hint" role="status">Counting …</p>`}
    ${report && !report.total.messages && html`<${Empty} icon="coin" title="No usage in this period"><p>The usage of sessions on this machine appears here by day, model, project and session.</p><//>`}
    ${report && report.total.messages > 0 && html`
      <div class="figures"><${Figure} label="Cost" value=${byTokens && report.total.unpriced_tokens ? "–" : formatCost(report.total.cost_usd)} />
        <${Figure} label="Tokens" value=${formatTokens(countTokens(report.total))} />
        <${Figure} label="Read from cache" value=${`${Math.round((100 * report.total.cache_read_tokens) / Math.max(1, countTokens(report.total) - report.total.output_tokens))}%`} /></div>
      ${report.total.unpriced_tokens > 0 && html`<p class="hint">Claude Code has recorded no price yet for ${formatTokens(report.total.unpriced_tokens)} of these tokens; their cost is not counted.</p>`}
      <section><h2>${byTokens ? "Tokens per day" : "Cost per day"}</h2><${DayPlot} days=${days} values=${days.map((day) => valueOf(report.days[day], byTokens))} byTokens=${byTokens} /></section>
      <div class="columns"><${Table} title="Models" rows=${listModels(report)} /><${Table} title="Projects" rows=${groupByProject(report)} /></div>
      <${Table} title="Sessions" rows=${listSessions(report)} limit=${12} />`}
  </main>`;
}

/** @param {Totals | undefined} totals @param {boolean} byTokens */
function valueOf(totals, byTokens) {
  return totals ? (byTokens ? countTokens(totals) : totals.cost_usd) : 0;
}

/** @param {{label: string, value: string}} props */
export function Figure({ label, value }) {
  return html`<div class="figure"><span class="label">${label}</span><span class="value">${value}</span></div>`;
}

/** @typedef {{name: string, href?: string, why?: string, tokens: number, cost: number, time?: number}} CostRow */

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
      why: `#/costs/${totals.session_id}`,
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

/** @param {CostRow} row */
function formatRowCost(row) {
  return row.cost ? formatCost(row.cost) : "–";
}

/** @param {{title: string, rows: CostRow[], limit?: number}} props */
export function Table({ title, rows, limit = 8 }) {
  const [all, setAll] = useState(false);
  const most = Math.max(...rows.map((row) => row.cost || 0)) || Math.max(1, ...rows.map((row) => row.tokens));
  const hasCost = rows.some((row) => row.cost > 0);
  return html`<section class="cost-table"><h2>${title}</h2><table><thead class="hidden"><tr><th>Name</th><th>Tokens</th><th>Cost</th></tr></thead>
    <tbody>${(all ? rows : rows.slice(0, limit)).map((row) => html`<tr><td><progress class="bar" max=${most} value=${hasCost ? row.cost : row.tokens} aria-hidden="true"></progress>
      ${row.href ? html`<a href=${row.href}>${row.name}</a>` : html`<span>${row.name}</span>`}${row.time ? html` <time>${formatAge(row.time)}</time>` : ""}</td>
      <td>${formatTokens(row.tokens)}</td><td>${row.why ? html`<a href=${row.why} aria-label=${`${formatRowCost(row)} for ${row.name}: what it was spent on`} title="What it was spent on">${formatRowCost(row)}</a>` : formatRowCost(row)}</td></tr>`)}</tbody></table>
    ${rows.length > limit && !all && html`<button class="small" onClick=${() => setAll(true)}>Show all ${rows.length}</button>`}</section>`;
}

/** Bars, one a day. @param {{days: string[], values: number[], byTokens: boolean}} props */
function DayPlot({ days, values, byTokens }) {
  const format = (/** @type {number} */ value) => (byTokens ? formatTokens(value) : formatCost(value) || "$0");
  const most = Math.max(...values);
  const highest = `${format(most)} on ${days[values.indexOf(most)]}`;
  return html`<div class="plot-box"><svg class="plot" viewBox=${`0 0 ${10 * days.length} 100`} preserveAspectRatio="none" role="img" aria-label=${`The highest day: ${highest}`}>
      ${values.map((value, at) => html`<g><title>${days[at]}: ${format(value)}</title><rect class="slot" x=${10 * at} width="10" height="100" />
        <rect x=${10 * at + 1.5} y=${100 - (100 * value) / (most || 1)} width="7" height=${(100 * value) / (most || 1)} /></g>`)}</svg>
    <p class="plot-days"><time>${days[0]}</time><span>Highest: ${highest}</span><time>${days.at(-1)}</time></p></div>`;
}
