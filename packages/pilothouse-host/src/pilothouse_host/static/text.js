/** Values of a model as text for people. Pure: no page. */

// Blank, ignorable, reordering, unassigned and control characters. Emoji may have the selector that makes them coloured.
const UNSEEN = /(?!(?<=\p{Extended_Pictographic})\uFE0F)[\p{DI}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\u2800]|(?!\n|\t|\r\n)\p{Cc}/gu;

/** Any value as text: a model may put anything where a text is expected. @param {unknown} value @returns {string} */
export function toText(value) {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
}

/**
 * What a person reads before deciding: text in which nothing is invisible, and nothing reorders the rest. Otherwise a
 * command could look like another one.
 * @param {unknown} value @returns {string}
 */
export function reveal(value) {
  return toText(value).replace(UNSEEN, (char) => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`);
}

/** @param {unknown} value @returns {any[]} the objects in a list; none if it is no list */
export function listObjects(value) {
  return Array.isArray(value) ? value.filter((each) => each && typeof each === "object") : [];
}

/** Options of the Python API that the texts of a policy name, and what they are called here. @type {Record<string, string>} */
const WORDS = { allowed_tools: "allowed tools", can_use_tool: "a program's own function", disallowed_tools: "disallowed tools", extra_args: "further flags", managed_settings: "managed settings", mcp_servers: "MCP servers", on_plan: "a program's own function", on_question: "a program's own function", permission_mode: "permission mode", permission_prompts: "permission prompts", setting_sources: "settings files", strict_mcp_config: "strict MCP configuration", tool_bridge: "tool bridge" };

/** A text of a policy, without the names and the advice for somebody who writes Python. @param {string} text */
export function toPlainWords(text) {
  const advice = /(;|, unless|, and) \w+=(\[|True|\{)[^;]*$/;
  const named = new RegExp(`(?<![\\w-])\`?(${Object.keys(WORDS).join("|")})\\b\`?`, "g");
  return text.replace(advice, "").replace(named, (_, name) => WORDS[name] ?? name).replaceAll("no function", "nobody");
}
