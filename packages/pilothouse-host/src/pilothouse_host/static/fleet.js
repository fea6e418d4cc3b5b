/** The fleets whose journals the host shows: how far they are, and their runs. */

import { ApiError, call } from "./api.js";
import { Code, Empty, formatAge, formatCost, formatDuration, formatTokens, shortPath } from "./ui.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

const REFRESH = 3000;
const PAGE = 50;
const STATES = ["queued", "running", "succeeded", "failed", "interrupted", "cancelled"];

export function FleetPage() {
  const [fleets, setFleets] = useState(/** @type {any[] | null} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let current = true;
    const refresh = () => {
      if (document.hidden) return;
      call("GET", "v1/fleet").then((found) => current && setFleets(found.fleets), (error) => error instanceof ApiError && current && setProblem(error.message));
    };
    refresh();
    const timer = setInterval(refresh, REFRESH);
    return () => {
      current = false;
      clearInterval(timer);
    };
  }, []);
  return html`<main tabindex="-1" class="page fleet"><header class="page-head"><h1>Fleet</h1></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${fleets?.length === 0 && html`<${Empty} icon="fleet" title="No fleets to show"><p>A fleet runs many prompts and records them in a journal. To see one here, start the console with its file:</p><p><code>pilothouse console --fleet runs.db</code></p><//>`}
    ${fleets?.map((fleet) => html`<${Fleet} key=${fleet.journal} fleet=${fleet} isOnly=${fleets.length === 1} />`)}</main>`;
}

/** @param {{fleet: any, isOnly: boolean}} props */
function Fleet({ fleet, isOnly }) {
  const { journal, status, error } = fleet;
  const [open, setOpen] = useState(isOnly);
  const [state, setState] = useState("");
  const [limit, setLimit] = useState(PAGE);
  const [runs, setRuns] = useState(/** @type {any[]} */ ([]));
  const mark = JSON.stringify(status);
  useEffect(() => {
    if (!open || !status) return;
    let current = true;
    const query = `journal=${encodeURIComponent(journal)}&limit=${Math.min(200, limit)}${state ? `&state=${state}` : ""}`;
    call("GET", `v1/fleet?${query}`).then((found) => current && setRuns(found.fleets.find((/** @type {any} */ each) => each.journal === journal)?.runs ?? []), () => undefined);
    return () => {
      current = false;
    };
  }, [open, state, limit, mark]);
  if (error) return html`<section class="panel"><h2>${shortPath(journal)}</h2><p class="problem" role="alert">${error}</p></section>`;
  const total = STATES.reduce((sum, name) => sum + status[name], 0);
  const ended = status.succeeded + status.failed + status.cancelled;
  return html`<section class="panel"><header class="fleet-head"><h2 title=${journal}>${shortPath(journal)}</h2>
      <span class="hint">${ended} of ${total} ended</span><span class="hint">${formatCost(status.cost_usd)}</span><span class="hint">${formatTokens(status.input_tokens + status.output_tokens)} tokens</span>
      <span class="spacer"></span><button class="ghost small" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide runs" : "Show runs"}</button></header>
    <div class="filters" role="group" aria-label="States"><button class="small" aria-pressed=${!state} onClick=${() => (setState(""), setOpen(true))}>All ${total}</button>
      ${STATES.filter((name) => status[name]).map((name) => html`<button class="small" aria-pressed=${state === name} onClick=${() => (setState(name), setOpen(true))}><i class=${`dot run-${name}`}></i>${name} ${status[name]}</button>`)}</div>
    ${open && html`<div class="runs">${runs.map((run) => html`<${RunRow} key=${run.key} run=${run} />`)}</div>
      ${runs.length >= limit && limit < 200 && html`<button class="small" onClick=${() => setLimit(200)}>Show more</button>`}`}</section>`;
}

/** @param {{run: any}} props */
function RunRow({ run }) {
  const [open, setOpen] = useState(false);
  const seconds = run.started ? (run.ended ?? Date.now() / 1000) - run.started : 0;
  return html`<details class="run" open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}><summary><i class=${`dot run-${run.state}`} title=${run.state}></i>
      <b>${run.key}</b><span class="what">${run.error ?? (run.text || run.prompt)}</span>
      ${run.attempts > 1 && html`<span class="chip">${run.attempts - 1} ${run.attempts === 2 ? "retry" : "retries"}</span>`}<span class="cost">${run.cost_usd > 0 ? formatCost(run.cost_usd) : ""}</span>
      <time>${run.started ? formatDuration(seconds * 1000) : formatAge(run.created)}</time></summary>
    ${open && html`<dl class="fields"><dt>Prompt</dt><dd><${Code} text=${run.prompt} label="Prompt" /></dd>
      ${run.text && html`<dt>Answer</dt><dd><${Code} text=${run.text} label="Answer" /></dd>`}
      ${run.error && html`<dt>Error</dt><dd class="problem">${run.error_type}: ${run.error}</dd>`}
      <dt>State</dt><dd>${run.state}, ${run.attempts} ${run.attempts === 1 ? "attempt" : "attempts"}, ${formatTokens(run.input_tokens + run.output_tokens)} tokens</dd>
      ${run.session_id && html`<dt>Session</dt><dd><a href=${`#/transcripts/${run.session_id}`}>${run.session_id}</a></dd>`}
      ${run.artifacts.length > 0 && html`<dt>Artifacts</dt><dd>${run.artifacts.map((/** @type {string} */ place) => html`<code>${place}</code> `)}</dd>`}</dl>`}</details>`;
}
