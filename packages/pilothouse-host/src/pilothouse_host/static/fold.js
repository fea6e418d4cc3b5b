/**
 * Folds the messages of Claude Code into what a timeline shows. Pure: no page, no network, no clock.
 *
 * `foldEvent` changes a timeline in place. It raises `version` of each item that it changes, and of the items around it,
 * so that a view redraws only those.
 */

import { listObjects, toText } from "./text.js";

/** @typedef {{type: string, [field: string]: any}} Message a line of Claude Code, or a row of a transcript */
/**
 * @typedef {object} Item one entry of a timeline
 * @property {string} key unique in the timeline
 * @property {"prompt"|"text"|"thinking"|"tool"|"notice"|"result"} kind
 * @property {number} version
 * @property {string} text what it says; of a tool: the outcome; of a notice: the words
 * @property {boolean} done whether no more will come
 * @property {boolean} failed
 * @property {string} [name] of a tool
 * @property {string} [call] the id of a tool's call
 * @property {any} [input] of a tool
 * @property {string} [partial] JSON of a tool's input, while it streams
 * @property {any} [detail] of a tool: what Claude Code says about the outcome; of a result: the message
 * @property {string} [task] state of a sub-agent that runs in the background
 * @property {Item[]} [children] of a sub-agent
 * @property {Item} [parent] the sub-agent that it belongs to
 * @property {string[]} images as addresses with `data:`
 * @property {string} [tone] of a notice: "info" or "error"
 * @property {string} [uuid] of a prompt: its id
 * @property {string} [became] of a prompt that was written while a turn ran: what became of it
 * @property {string} [time] as Claude Code wrote it
 */
/** @typedef {{content: string, status: string, id?: string}} Todo */
/** @typedef {{messageId: string, blocks: Map<number, Item>}} OpenMessage */
/**
 * @typedef {object} Timeline
 * @property {Item[]} items
 * @property {number} version raised with every change
 * @property {Map<string, Item>} tools by the id of the call
 * @property {Map<string, Item>} tasks sub-agents in the background, by the id of the task
 * @property {Map<string, OpenMessage>} open the message that streams, by sub-agent ("" is the session itself)
 * @property {Set<string>} seen ids of messages
 * @property {Map<string, string>} words what became of words for a turn, by their id
 * @property {Todo[]} todos
 * @property {any} init the last message of that kind
 * @property {string} status what the session does, in Claude Code's words
 * @property {string} model
 * @property {string} mode
 * @property {number} context tokens that the last request had
 * @property {number} contextWindow 0: unknown
 * @property {number} cost US dollars of the process that runs
 * @property {number} spent US dollars of the processes before it
 * @property {boolean} running whether a turn runs
 * @property {boolean} needsLogin whether the last turn has failed as Claude Code has no key and no login
 * @property {number} count of keys
 */

const MAX_OUTCOME = 200_000;
const TODO_STATES = ["pending", "in_progress", "completed"];
const HIDDEN_PROMPT = /^\s*<(?:local-command|command-|task-notification|system-reminder)/;
const INTERRUPTED = /^\[Request interrupted by user/;
export const AGENT_TOOLS = new Set(["Task", "Agent"]);
export const EDIT_TOOLS = new Set(["Edit", "MultiEdit", "Write", "NotebookEdit"]);

/** @returns {Timeline} */
export function makeTimeline() {
  return {
    items: [], version: 0, tools: new Map(), tasks: new Map(), open: new Map(), seen: new Set(), words: new Map(), todos: [], init: null, status: "",
    model: "", mode: "", context: 0, contextWindow: 0, cost: 0, spent: 0, running: false, needsLogin: false, count: 0,
  };
}

/**
 * @param {Timeline} timeline
 * @param {Message} message
 */
export function foldEvent(timeline, message) {
  if (!message || typeof message !== "object") return;
  if (message.uuid && message.type !== "stream_event") {
    if (timeline.seen.has(message.uuid)) return;
    timeline.seen.add(message.uuid);
  }
  try {
    if (Object.hasOwn(FOLDS, message.type)) FOLDS[message.type]?.(timeline, message);
  } catch (error) {
    add(timeline, "notice", { text: `The console cannot read a message of the type ${toText(message.type)}: ${error}`, tone: "error", failed: true });
  }
  timeline.version += 1;
}

/** @type {Record<string, (timeline: Timeline, message: Message) => void>} */
const FOLDS = {
  assistant: foldAssistant,
  user: foldUser,
  stream_event: foldStream,
  system: foldSystem,
  result: foldResult,
};

/**
 * @param {Timeline} timeline
 * @param {Item["kind"]} kind
 * @param {Partial<Item>} fields
 * @param {string | null} [agent] id of the call that started the sub-agent
 * @returns {Item}
 */
function add(timeline, kind, fields, agent) {
  /** @type {Item} */
  const item = { key: `i${timeline.count++}`, kind, version: 0, text: "", done: true, failed: false, images: [], ...fields };
  const parent = agent ? timeline.tools.get(agent) : undefined;
  if (parent) {
    item.parent = parent;
    (parent.children ??= []).push(item);
    touch(parent);
  } else {
    timeline.items.push(item);
  }
  return item;
}

/** @param {Item | undefined} item */
function touch(item) {
  for (; item; item = item.parent) item.version += 1;
}

/** @param {Timeline} timeline @param {Item} item */
function remove(timeline, item) {
  const list = item.parent ? item.parent.children : timeline.items;
  const at = list ? list.lastIndexOf(item) : -1;
  if (at >= 0) list?.splice(at, 1);
  touch(item.parent);
}

/** @param {any} content @returns {any[]} */
function listBlocks(content) {
  return typeof content === "string" ? [{ type: "text", text: content }] : listObjects(content);
}

/** @param {any[]} blocks @returns {string} */
function joinTexts(blocks) {
  return blocks.filter((block) => typeof block.text === "string").map((block) => block.text).join("\n");
}

/** @param {any[]} blocks @returns {string[]} */
function listImages(blocks) {
  const images = blocks.filter((block) => block.type === "image" && block.source?.type === "base64");
  return images.map(({ source }) => `data:${source.media_type};base64,${source.data}`);
}

const NO_LOGIN = "Not logged in";
const NO_KEY = "Claude Code has neither a key nor a login on this host. Log in below; or set ANTHROPIC_API_KEY and start the host again; or run `pilothouse chat --local` in a terminal there, with a small open model that needs no key.";

/** Text of the CLI without its advice for people at its own terminal. @param {string} text */
function hideLogin(text) {
  return text.replace(/ · Please run \/login$/, "");
}

/** @param {Timeline} timeline @param {Message} message */
function foldAssistant(timeline, message) {
  const body = message.message ?? {};
  const agent = message.parent_tool_use_id ?? "";
  const open = timeline.open.get(agent);
  const streamed = open && open.messageId === body.id ? [...open.blocks.values()] : [];
  if (!agent) noteUsage(timeline, body);
  for (const block of listBlocks(body.content)) {
    if (block.type === "tool_use" || block.type === "server_tool_use") finishTool(timeline, block, agent, message.timestamp);
    else if (block.type === "text" || block.type === "thinking") {
      const failed = Boolean(message.isApiErrorMessage ?? message.error);
      const written = toText(block.type === "text" ? block.text : block.thinking);
      if (!written) continue;
      const text = failed ? hideLogin(written) : written;
      let item = streamed.find((each) => each.kind === block.type && !each.done);
      if (!item) item = add(timeline, block.type, { time: message.timestamp }, agent);
      Object.assign(item, { text, done: true, failed });
      touch(item);
    }
  }
}

/** @param {Timeline} timeline @param {any} body */
function noteUsage(timeline, body) {
  const usage = body.usage;
  if (body.model && body.model !== "<synthetic>") timeline.model = toText(body.model);
  if (!usage || body.model === "<synthetic>") return;
  const fields = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"];
  timeline.context = fields.reduce((sum, field) => sum + (Number(usage[field]) || 0), 0);
}

/** @param {Timeline} timeline @param {any} block @param {string} agent @param {string} [time] */
function finishTool(timeline, block, agent, time) {
  const item = timeline.tools.get(block.id) ?? addTool(timeline, block, agent);
  item.input = block.input;
  item.partial = undefined;
  item.time ??= time;
  if (block.name === "TodoWrite") timeline.todos = listObjects(block.input?.todos).map(readTodo);
  if (block.name === "TaskUpdate") updateTodo(timeline, block.input ?? {});
  touch(item);
}

/** @param {any} todo @returns {Todo} */
function readTodo({ content, status }) {
  return { content: toText(content), status: TODO_STATES.includes(status) ? status : "pending" };
}

/** @param {Timeline} timeline @param {any} block @param {string} agent */
function addTool(timeline, block, agent) {
  const item = add(timeline, "tool", { name: toText(block.name), call: block.id, done: false, input: block.input ?? {} }, agent);
  timeline.tools.set(block.id, item);
  return item;
}

/** @param {Timeline} timeline @param {any} input */
function updateTodo(timeline, input) {
  const todos = timeline.todos.filter((todo) => todo.id !== input.taskId || input.status !== "deleted");
  timeline.todos = todos.map((todo) => (todo.id === input.taskId ? { ...todo, ...(TODO_STATES.includes(input.status) ? { status: input.status } : {}) } : todo));
}

/** @param {Timeline} timeline @param {Message} message */
function foldUser(timeline, message) {
  const blocks = listBlocks(message.message?.content);
  const agent = message.parent_tool_use_id ?? "";
  for (const block of blocks.filter((each) => each.type === "tool_result")) foldOutcome(timeline, message, block);
  const said = blocks.filter((block) => block.type === "text" || block.type === "image");
  const text = joinTexts(said);
  if (!said.length || agent || message.isMeta || message.isSynthetic || HIDDEN_PROMPT.test(text)) return;
  if (INTERRUPTED.test(text)) {
    add(timeline, "notice", { text: "Interrupted", tone: "info", time: message.timestamp });
    return;
  }
  if (message.isCompactSummary) return;
  timeline.running = true;
  const uuid = toText(message.uuid);
  add(timeline, "prompt", { text, images: listImages(said), time: message.timestamp, uuid, became: timeline.words.get(uuid) ?? "" });
}

/** @param {Timeline} timeline @param {Message} message @param {any} block */
function foldOutcome(timeline, message, block) {
  const item = timeline.tools.get(block.tool_use_id);
  if (!item) return;
  const blocks = listBlocks(block.content);
  const text = joinTexts(blocks).replace(/^<tool_use_error>([\s\S]*)<\/tool_use_error>$/, "$1");
  // Of a sub-agent in the background, this is a note for the model; `noteTask` gets what it says.
  if (!item.task) item.text = text.length > MAX_OUTCOME ? `${text.slice(0, MAX_OUTCOME)}\n…` : text;
  item.images = listImages(blocks);
  item.failed = block.is_error === true;
  item.done = true;
  item.detail = message.tool_use_result ?? message.toolUseResult;
  if (item.name === "TaskCreate" && !item.failed) {
    const id = toText(item.detail?.task?.id ?? /#(\d+)/.exec(text)?.[1] ?? item.key);
    timeline.todos = [...timeline.todos, { id, content: toText(item.input?.subject), status: "pending" }];
  }
  touch(item);
}

/** @param {Timeline} timeline @param {Message} message */
function foldStream(timeline, message) {
  const agent = message.parent_tool_use_id ?? "";
  const event = message.event ?? {};
  if (event.type === "message_start") {
    dropUnfinished(timeline, agent);
    timeline.open.set(agent, { messageId: event.message?.id, blocks: new Map() });
    if (!agent) timeline.running = true;
    return;
  }
  const open = timeline.open.get(agent);
  if (!open) return;
  if (event.type === "content_block_start") startBlock(timeline, open, event, agent);
  else if (event.type === "content_block_delta") growBlock(open.blocks.get(event.index), event.delta ?? {});
}

/** @param {Timeline} timeline @param {OpenMessage} open @param {any} event @param {string} agent */
function startBlock(timeline, open, event, agent) {
  const block = event.content_block ?? {};
  if (block.type === "tool_use") open.blocks.set(event.index, addTool(timeline, block, agent));
  else if (block.type === "text" || block.type === "thinking") {
    const text = toText(block.text || block.thinking);
    open.blocks.set(event.index, add(timeline, block.type, { text, done: false }, agent));
  }
}

/** @param {Item | undefined} item @param {any} delta */
function growBlock(item, delta) {
  if (!item || (item.done && item.kind !== "tool")) return;
  if (typeof delta.text === "string") item.text += delta.text;
  else if (typeof delta.thinking === "string") item.text += delta.thinking;
  else if (typeof delta.partial_json === "string") item.partial = (item.partial ?? "") + delta.partial_json;
  else return;
  touch(item);
}

/** A message that starts anew replaces one whose parts never became whole. @param {Timeline} timeline @param {string} agent */
function dropUnfinished(timeline, agent) {
  for (const item of timeline.open.get(agent)?.blocks.values() ?? []) {
    if (item.kind === "tool" ? item.partial !== undefined && !item.done : !item.done) remove(timeline, item);
  }
  timeline.open.delete(agent);
}

/** What was being written stays as it is: the turn or its process has ended. @param {Timeline} timeline */
function closeOpen(timeline) {
  for (const open of timeline.open.values()) {
    for (const item of open.blocks.values()) {
      if (item.kind === "tool" || item.done) continue;
      if (item.text) item.done = true;
      else remove(timeline, item);
      touch(item);
    }
  }
  timeline.open.clear();
  timeline.running = false;
  timeline.status = "";
  for (const item of timeline.tools.values()) {
    if (item.done || item.task === "running") continue;
    Object.assign(item, { done: true, failed: true, text: item.text || "No result: the turn ended first." });
    touch(item);
  }
}

/** @param {Timeline} timeline @param {Message} message */
function foldSystem(timeline, message) {
  if (Object.hasOwn(SYSTEM_FOLDS, message.subtype)) SYSTEM_FOLDS[message.subtype]?.(timeline, message);
}

/** @type {Record<string, (timeline: Timeline, message: Message) => void>} */
const SYSTEM_FOLDS = {
  init(timeline, message) {
    // It begins each turn. If the turn before has no result, its process was killed.
    closeOpen(timeline);
    timeline.init = message;
    timeline.model = toText(message.model) || timeline.model;
    timeline.mode = toText(message.permissionMode) || timeline.mode;
  },
  status(timeline, message) {
    timeline.status = toText(message.status);
    timeline.mode = toText(message.permissionMode) || timeline.mode;
  },
  compact_boundary(timeline) {
    add(timeline, "notice", { text: "The conversation was compacted: the model continues with a summary.", tone: "info" });
  },
  api_retry(timeline, message) {
    const what = message.error_status ? `answered HTTP ${message.error_status}` : "could not be reached";
    add(timeline, "notice", { text: `The API ${what}; trying again.`, tone: "info" });
  },
  steering(timeline, message) {
    const [id, outcome] = [toText(message.steering), toText(message.outcome)];
    timeline.words.set(id, outcome);
    const item = timeline.items.findLast((each) => each.uuid === id);
    if (item) {
      item.became = outcome;
      touch(item);
    } else if (outcome === "returned") add(timeline, "notice", { text: `Not sent because the turn had ended: ${toText(message.title) || "a picture"}`, tone: "info" });
  },
  query_failed(timeline, message) {
    closeOpen(timeline);
    if (message.prompt) timeline.words.set(toText(message.prompt), "returned");
    add(timeline, "notice", { text: toText(message.error) || "The prompt failed.", tone: "error", failed: true });
  },
  task_started: noteTask,
  task_updated: noteTask,
  task_notification: noteTask,
};

/** @param {Timeline} timeline @param {Message} message */
function noteTask(timeline, message) {
  const item = timeline.tasks.get(message.task_id) ?? timeline.tools.get(message.tool_use_id);
  if (!item || !AGENT_TOOLS.has(item.name ?? "")) return;
  timeline.tasks.set(message.task_id, item);
  item.task = message.subtype === "task_started" ? "running" : (message.status ?? message.patch?.status ?? item.task);
  if (message.summary) item.text = toText(message.summary);
  touch(item);
}

/** @param {Timeline} timeline @param {Message} message */
function foldResult(timeline, message) {
  closeOpen(timeline);
  const cost = Number(message.total_cost_usd) || 0;
  if (cost < timeline.cost) timeline.spent += timeline.cost;
  timeline.cost = cost;
  for (const usage of Object.values(message.modelUsage ?? {})) {
    timeline.contextWindow = Math.max(timeline.contextWindow, Number(usage?.contextWindow) || 0);
  }
  const failed = Boolean(message.is_error) || message.subtype !== "success";
  const last = timeline.items[timeline.items.length - 1];
  const said = hideLogin(toText(message.result ?? (Array.isArray(message.errors) ? message.errors.map(toText).join("\n") : message.errors)));
  const told = failed && last?.text !== said ? said : "";
  timeline.needsLogin = failed && said.startsWith(NO_LOGIN);
  const text = timeline.needsLogin ? NO_KEY : told;
  add(timeline, "result", { failed, text, detail: message });
}

/** @typedef {{file: string, edits: {input: any, name: string, patch: any}[]}} FileChange */

/**
 * What the session has changed, by file in the order of the first change.
 * @param {Timeline} timeline
 * @returns {FileChange[]}
 */
export function listChanges(timeline) {
  /** @type {Map<string, FileChange>} */
  const found = new Map();
  for (const item of timeline.tools.values()) {
    if (!EDIT_TOOLS.has(item.name ?? "") || !item.done || item.failed) continue;
    const file = toText(item.input?.file_path ?? item.input?.notebook_path) || "?";
    const change = found.get(file) ?? { file, edits: [] };
    change.edits.push({ input: item.input, name: String(item.name), patch: item.detail });
    found.set(file, change);
  }
  return [...found.values()];
}
