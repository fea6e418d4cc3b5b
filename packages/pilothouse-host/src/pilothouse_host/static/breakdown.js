/** What one session cost, and why: by agent and by tool. */

import { call } from "./api.js";
import { countTokens, Figure, Table } from "./costs.js";
import { formatCost, formatDuration, formatTokens } from "./ui.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

/** @typedef {{name: string, calls: number, errors: number, seconds: number, result_tokens: number}} ToolRow */

/** @param {{id: string}} props */
export function BreakdownPage({ id }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    call("GET", `v1/usage/${encodeURIComponent(id)}`).then(setFound, (error) => setProblem(error.message));
  }, [id]);
  const spent = found?.breakdown;
  const agents = spent?.agents.map((/** @type {any} */ row) => ({ name: row.name, tokens: countTokens(row), cost: row.cost_usd }));
  return html`<main tabindex="-1" class="page costs"><header class="page-head"><h1>${found ? found.transcript.summary : "Costs of a session"}</h1>
      <nav aria-label="Session"><a href="#/costs">All costs</a> <a href=${`#/transcripts/${id}`}>Transcript</a></nav></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${!found && !problem && html`<p class="hint" role="status">Counting …</p>`}
    ${found && html`<div class="figures"><${Figure} label="Cost" value=${spent.cost_usd ? formatCost(spent.cost_usd) : "–"} />
        <${Figure} label="Tokens" value=${formatTokens(spent.models.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + countTokens(row), 0))} />
        <${Figure} label="Sub-agents" value=${spent.agents.filter((/** @type {any} */ row) => row.tool_use_id).length} /></div>
      ${spent.unpriced_tokens > 0 && html`<p class="hint">Claude Code has recorded no price yet for ${formatTokens(spent.unpriced_tokens)} of these tokens; their cost is not counted.</p>`}
      <${Table} title="Agents" rows=${agents} limit=${12} />
      ${spent.tools.length > 0 && html`<${Tools} rows=${spent.tools} />`}`}
  </main>`;
}

/** @param {{rows: ToolRow[]}} props */
function Tools({ rows }) {
  return html`<section class="cost-table"><h2>Tools</h2><table>
    <thead><tr><th>Tool</th><th>Calls</th><th>Errors</th><th>Time</th><th>Tokens</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr><td>${row.name}</td><td>${row.calls}</td><td>${row.errors || "–"}</td><td>${formatDuration(row.seconds * 1000)}</td><td>≈ ${formatTokens(row.result_tokens)}</td></tr>`)}</tbody></table></section>`;
}
