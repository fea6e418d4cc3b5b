/** What sessions may do without asking, and what they have loaded. */

import { call } from "./api.js";
import { LoginCard } from "./logins.js";
import { titleOf, useStore } from "./store.js";
import { toPlainWords } from "./text.js";
import { Icon } from "./ui.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

/** @type {Record<string, string>} */
const OUTCOMES = { runs: "Runs without asking", asks: "Asks you", judged: "A model decides each time", denied: "Denied", unavailable: "Unavailable tools" };

export function PolicyPage() {
  const { sessions } = useStore();
  const [chosen, setChosen] = useState("");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const hosted = [...sessions.values()].filter((session) => session.kind === "hosted");
  useEffect(() => {
    let current = true;
    setProblem("");
    call("GET", `v1/policy${chosen ? `?session=${chosen}` : ""}`).then((body) => current && setFound(body), (error) => current && setProblem(error.message));
    return () => {
      current = false;
    };
  }, [chosen]);
  const policy = found?.policy;
  return html`<main tabindex="-1" class="page policy"><header class="page-head"><h1>Policy</h1>
      <label><span class="hidden">Session</span><select value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}><option value="">A new session</option>
        ${hosted.map((session) => html`<option value=${session.id}>${titleOf(session)}</option>`)}</select></label></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${policy && html`<p>Permission mode <b>${policy.mode}</b>. Calls that need approval ${policy.answered_by === "asks" ? "wait in the inbox." : `are answered by: ${toPlainWords(policy.answered_by)}`}</p>
      ${policy.warnings.map((/** @type {string} */ text) => html`<p class="notice error">${toPlainWords(text)}</p>`)}
      ${Object.keys(OUTCOMES).map((outcome) => html`<${Rows} key=${outcome} outcome=${outcome} rows=${policy.rows.filter((/** @type {any} */ row) => row.outcome === outcome)} />`)}
      <${Facts} title="Hooks that may decide first" items=${policy.hooks} none="None." />
      <${Facts} title="Not visible from here" items=${policy.unseen.map(toPlainWords)} />
      <${Facts} title="Easily misread" items=${policy.notes.map(toPlainWords)} />`}
    ${chosen && found?.mcp_servers && html`<section><h2>MCP servers</h2>${found.mcp_problem && html`<p class="problem">${found.mcp_problem}</p>`}
      ${found.mcp_servers.length ? html`<ul class="panel list">${found.mcp_servers.map((/** @type {any} */ server) => html`<li><i class=${`dot ${server.status === "connected" ? "idle" : "failed"}`}></i><b>${server.name}</b><span class="hint">${server.error ?? server.status}</span><span class="hint">${server.tools} ${server.tools === 1 ? "tool" : "tools"}</span></li>`)}</ul>
        ${found.mcp_servers.filter((/** @type {any} */ server) => server.status === "needs-auth").map((/** @type {any} */ server) => html`<${LoginCard} key=${server.name} session=${chosen} server=${server.name}
          login=${sessions.get(chosen)?.logins?.find((each) => each.server === server.name)} />`)}`
        : html`<p class="hint">This session has no MCP servers, or its process is not running.</p>`}</section>`}
    <${Suggestion} key=${chosen} session=${chosen} />
    ${chosen && found?.isolation && html`<${Facts} title="Loaded although no option asked for it" items=${found.isolation.unexpected} none="Nothing." />`}
  </main>`;
}

/** Permissions that fit the recorded work of the project; nothing is applied. @param {{session: string}} props */
function Suggestion({ session }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const load = () => {
    setBusy(true);
    setProblem("");
    call("GET", `v1/policy/suggestion${session ? `?session=${session}` : ""}`).then(setFound, (error) => setProblem(error.message)).finally(() => setBusy(false));
  };
  const { suggestion } = found ?? {};
  const seen = suggestion?.deny.filter((/** @type {any} */ rule) => rule.calls || rule.refuses) ?? [];
  const always = suggestion?.deny.filter((/** @type {any} */ rule) => !rule.calls && !rule.refuses) ?? [];
  return html`<section class="suggestion"><h2>Suggested permissions</h2>
    <p class="hint">The narrowest rules under which the recorded work of this project would run again. Nothing is applied.</p>
    <button disabled=${busy} onClick=${load}>${busy ? "Reading transcripts…" : "Suggest"}</button>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${suggestion && !suggestion.calls && html`<p>There are no recorded tool calls in ${suggestion.root}.</p>`}
    ${suggestion?.calls > 0 && html`<p>From ${count(suggestion.calls, "call")} of ${count(suggestion.sessions, "session")} in <code>${suggestion.root}</code>.</p>
      <${Evidence} title="Would allow" icon="check" rows=${suggestion.rules.map((/** @type {any} */ rule) => [rule.rule, rule.allows, describe(rule)])} />
      <${Evidence} title="Would deny" icon="shield" rows=${[...seen.map((/** @type {any} */ rule) => [rule.rule, rule.allows, describe(rule)]), [always.map((/** @type {any} */ rule) => rule.rule).join(", "), "secrets, and files that name programs or permissions", "always proposed"]]} />
      <${Evidence} title="Would keep asking" icon="inbox" rows=${suggestion.still_asks.map((/** @type {any} */ each) => [each.examples.join(", "), each.reason, `${each.tool}, ${count(each.calls, "call")}`])} />
      <details class="panel outcome"><summary><${Icon} name="shield" /><h3>As a settings file</h3></summary><pre tabindex="0">${JSON.stringify(found.settings, null, 2)}</pre></details>`}
  </section>`;
}

/** @param {number} number @param {string} noun */
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** What a rule stands on. @param {any} rule */
const describe = (rule) => rule.refuses ? `would have refused ${count(rule.refuses, "call")} that ran` : `${count(rule.calls, "call")} of ${count(rule.sessions.length, "session")}: ${rule.examples.join(", ")}`;

/** @param {{title: string, icon: string, rows: string[][]}} props */
function Evidence({ title, icon, rows }) {
  if (!rows.length) return null;
  return html`<details class="panel outcome" open><summary><${Icon} name=${icon} /><h3>${title}</h3><span class="count">${rows.length}</span></summary>
    <table><tbody>${rows.map(([rule, reason, evidence]) => html`<tr><th scope="row">${rule}</th><td>${reason}</td><td class="hint">${evidence}</td></tr>`)}</tbody></table></details>`;
}

/** Rows that differ in the tool only, as one. @param {any[]} rows */
function joinTools(rows) {
  /** @type {Map<string, {tools: string[], calls: string, why: string}>} */
  const found = new Map();
  for (const { tool, calls, why, option, origin } of rows) {
    const shown = { calls: calls || "all calls", why: toPlainWords(`${why}${option && !why.startsWith(option) ? ` (${option}${origin ? `, ${origin}` : ""})` : ""}`) };
    const known = found.get(JSON.stringify(shown));
    if (known) known.tools.push(tool);
    else found.set(JSON.stringify(shown), { tools: [tool], ...shown });
  }
  return [...found.values()];
}

/** @param {{outcome: string, rows: any[]}} props */
function Rows({ outcome, rows }) {
  if (!rows.length) return null;
  return html`<details class="panel outcome" open=${outcome === "runs" || outcome === "asks"}><summary><${Icon} name=${outcome === "runs" ? "check" : outcome === "asks" ? "inbox" : "shield"} /><h2>${OUTCOMES[outcome]}</h2><span class="count">${rows.length}</span></summary>
    <table><tbody>${joinTools(rows).map(({ tools, calls, why }) => html`<tr><th scope="row">${tools.join(", ")}</th><td>${calls}</td><td class="hint">${why}</td></tr>`)}</tbody></table></details>`;
}

/** @param {{title: string, items: string[], none?: string}} props */
function Facts({ title, items, none = "" }) {
  if (!items.length && !none) return null;
  return html`<section><h2>${title}</h2>${items.length ? html`<ul class="panel list">${items.map((text) => html`<li>${text}</li>`)}</ul>` : html`<p class="hint">${none}</p>`}</section>`;
}
