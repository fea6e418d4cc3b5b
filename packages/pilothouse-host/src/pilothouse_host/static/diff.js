/** Differences of two texts, as rows with the numbers of lines. */

import "./vendor/diff.js";
import { listObjects, reveal, toText } from "./text.js";
import { html, useMemo, useState } from "./vendor/htm-preact.js";

/** @type {any} */
const library = /** @type {any} */ (globalThis).Diff;
const MAX_ROWS = 400;
const MAX_SHOWN = 40_000;

/** @typedef {{oldStart: number, newStart: number, lines: string[], isPart?: boolean}} Hunk of a part of a file, whose place is not known, if `isPart` */
/** @typedef {{sign: string, before: number | null, after: number | null, text: string}} Row */

/** @param {string} before @param {string} after @returns {Hunk[]} */
export function compareTexts(before, after) {
  return library.structuredPatch("a", "b", before, after, "", "", { context: 3, timeout: 500 })?.hunks ?? [replaceAll(before, after)];
}

/** What is shown when a comparison takes too long: all lines go, and all lines come. @param {string} before @param {string} after @returns {Hunk} */
function replaceAll(before, after) {
  const mark = (/** @type {string} */ sign, /** @type {string} */ text) => (text ? text.split("\n").map((line) => sign + line) : []);
  return { oldStart: 1, newStart: 1, lines: [...mark("-", before), ...mark("+", after)] };
}

/**
 * The hunks of a call of Edit, MultiEdit or Write; those that Claude Code reports if it has run.
 * @param {string} name @param {any} input @param {any} [outcome]
 * @returns {Hunk[]}
 */
export function listHunks(name, input, outcome) {
  const patch = listObjects(outcome?.structuredPatch).filter((hunk) => Array.isArray(hunk.lines));
  if (patch.length) return patch.map((hunk) => ({ ...hunk, lines: hunk.lines.map(toText) }));
  if (name === "Write") return compareTexts(toText(outcome?.originalFile), toText(input?.content));
  if (name === "NotebookEdit") return compareTexts("", toText(input?.new_source));
  const edits = name === "MultiEdit" ? listObjects(input?.edits) : [input ?? {}];
  return edits
    .flatMap((/** @type {any} */ edit) => compareTexts(toText(edit.old_string), toText(edit.new_string)))
    .map((/** @type {Hunk} */ hunk) => ({ ...hunk, isPart: true }));
}

/** @param {Hunk[]} hunks @returns {Row[]} */
export function listRows(hunks) {
  return hunks.flatMap((hunk, at) => {
    let [before, after] = hunk.isPart ? [NaN, NaN] : [hunk.oldStart, hunk.newStart];
    /** @type {Row[]} */
    const rows = at ? [{ sign: "@", before: null, after: null, text: "" }] : [];
    for (const line of hunk.lines) {
      const sign = line[0] ?? " ";
      if (sign === "\\") continue; // "no newline at the end of the file"
      const text = line.slice(1);
      if (sign === "-") rows.push({ sign, before: before++, after: null, text });
      else if (sign === "+") rows.push({ sign, before: null, after: after++, text });
      else rows.push({ sign: " ", before: before++, after: after++, text });
    }
    return rows;
  });
}

/** @param {Hunk[]} hunks */
export function countLines(hunks) {
  const lines = hunks.flatMap((hunk) => hunk.lines);
  const count = (/** @type {string} */ sign) => lines.filter((line) => line.startsWith(sign)).length;
  return { added: count("+"), removed: count("-") };
}

/** @param {{hunks: Hunk[], label: string}} props */
export function Diff({ hunks, label }) {
  const rows = useMemo(() => listRows(hunks), [hunks]);
  const [all, setAll] = useState(false);
  const shown = all ? rows : cutRows(rows);
  if (!rows.length) return html`<p class="hint">No lines changed.</p>`;
  return html`<div class="diff" role="region" tabindex="0" aria-label=${label}><table><tbody>
      ${shown.map((row) => html`<tr class=${row.sign === "+" ? "added" : row.sign === "-" ? "removed" : row.sign === "@" ? "gap" : ""}>
        <td class="number">${row.before || ""}</td><td class="number">${row.after || ""}</td>
        <td class="sign">${row.sign === "@" ? "⋯" : row.sign}</td><td class="code">${reveal(row.text)}</td></tr>`)}
    </tbody></table></div>
    ${shown !== rows && html`<button class="small more" onClick=${() => setAll(true)}>Show all ${rows.length.toLocaleString()} lines</button>`}`;
}

/** The first rows, if there are many, or long ones. @param {Row[]} rows @returns {Row[]} */
function cutRows(rows) {
  let left = MAX_SHOWN;
  const shown = [];
  for (const row of rows) {
    if (shown.length === MAX_ROWS || left <= 0) return shown;
    shown.push(row.text.length > left ? { ...row, text: `${row.text.slice(0, left)} …` } : row);
    left -= row.text.length;
  }
  return left < 0 ? shown : rows;
}
