/** One session: what was said and done, as it happens, and the box for the next prompt. */

import { ApiError, call, follow } from "./api.js";
import { AskCard } from "./asks.js";
import { ToolCall } from "./calls.js";
import { Diff, countLines, listHunks } from "./diff.js";
import { foldEvent, listChanges, makeTimeline } from "./fold.js";
import { LoginCard, listLogins } from "./logins.js";
import { Markdown } from "./markdown.js";
import { MODELS, MODES, startSession } from "./sessions.js";
import { REFUSED_TOKEN, directoryOf, signOut, stateOf, store, titleOf, useStore } from "./store.js";
import { reveal } from "./text.js";
import { Boundary, Dialog, Empty, Icon, StateChip, formatCost, formatDuration, formatTokens, shortPath, useCut, useKeys } from "./ui.js";
import { Component, html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/htm-preact.js";

/** @typedef {import("./fold.js").Item} Item */
/** @typedef {import("./fold.js").Timeline} Timeline */

const PAGE = 5000; // messages of a transcript in one response: each response reads the whole file
const FIRST_ITEMS = 60;
const MORE_ITEMS = 240;
const MAX_TODOS = 100;
/** @type {Record<string, string>} */
const OUTCOME_WORDS = { taken: "added to the running turn", next_turn: "sent as the next prompt", query: "sent as the next prompt" };

/** @typedef {{text: string, images: string[]}} Draft */
/** @type {Map<string, Draft>} words for turns of which it is not known what became, by their id; they outlive a look at another page */
const given = new Map();

/** Redraw at most once a frame. @returns {() => void} */
function useFrame() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const frame = useRef(0);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  return () => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      redraw(null);
    });
  };
}

/**
 * Read a conversation on disk into a timeline.
 * @param {string} id @param {Timeline} timeline @param {() => boolean} isCurrent @param {number} [until] milliseconds since the epoch
 */
async function readTranscript(id, timeline, isCurrent, until = Infinity) {
  for (let offset = 0; isCurrent(); offset += PAGE) {
    const { messages } = await call("GET", `v1/transcripts/${id}?limit=${PAGE}&offset=${offset}`);
    for (const message of messages) if (!message.timestamp || Date.parse(message.timestamp) < until) foldEvent(timeline, message);
    if (messages.length < PAGE) return;
  }
}

/**
 * The timeline of a session of the host, or of a conversation on disk.
 * @param {string} id @param {boolean} onDisk
 */
function useTimeline(id, onDisk) {
  const timeline = useRef(makeTimeline());
  const state = useRef({ problem: "", isLoaded: false, isLive: false });
  const redraw = useFrame();
  useEffect(() => {
    const stopping = new AbortController();
    const { signal } = stopping;
    timeline.current = makeTimeline();
    state.current = { problem: "", isLoaded: false, isLive: !onDisk };
    const run = async () => {
      if (onDisk) await readTranscript(id, timeline.current, () => !signal.aborted);
      else await followSession(id, timeline.current, signal, (loaded) => (state.current.isLoaded ||= loaded, redraw()));
    };
    run().catch((error) => {
      if (error instanceof ApiError && error.status === 401) signOut(REFUSED_TOKEN);
      else state.current.problem = error instanceof ApiError && error.status === 404 ? "This session no longer exists." : String(error.message);
    }).finally(() => {
      state.current.isLoaded = true;
      redraw();
    });
    return () => stopping.abort();
  }, [id, onDisk]);
  return { timeline: timeline.current, ...state.current };
}

/** @param {string} id @param {Timeline} timeline @param {AbortSignal} signal @param {(loaded: boolean) => void} onChange */
async function followSession(id, timeline, signal, onChange) {
  const session = await call("GET", `v1/sessions/${id}`);
  const resumed = session.start?.options?.resume;
  // What was said before this session of the host is on disk.
  if (resumed) await readTranscript(resumed, timeline, () => !signal.aborted, session.created * 1000).catch(() => undefined);
  await follow(`v1/sessions/${id}/events`, {
    signal,
    onEvents(events) {
      for (const { event, data } of events) if (event === "message") foldEvent(timeline, data);
      onChange(true);
    },
    onState: () => onChange(false),
  });
}

/** @param {{id: string, onDisk?: boolean}} props */
export function TimelinePage({ id, onDisk = false }) {
  useStore();
  const { timeline, problem, isLoaded } = useTimeline(id, onDisk);
  const [panel, setPanel] = useState("");
  const session = onDisk ? undefined : store.sessions.get(id);
  const transcript = onDisk ? store.transcripts.get(id) : undefined;
  const asks = [...store.asks.values()].filter((ask) => ask.session === id);
  const state = session ? stateOf(session) : "ended";
  const interrupt = () => call("POST", `v1/sessions/${id}/interrupt`).catch(() => undefined);
  const title = transcript?.summary ?? titleOf(session);
  useKeys("Session", {
    e: ["Write a prompt", () => /** @type {HTMLElement | null} */ (document.querySelector(".composer textarea"))?.focus()],
    x: ["Interrupt the turn", interrupt],
    c: ["What changed", () => setPanel("changes")],
    t: ["Turns", () => setPanel("turns")],
    "]": ["Next turn", () => jumpTurn(1)],
    "[": ["Previous turn", () => jumpTurn(-1)],
  });
  const turns = timeline.items.filter((item) => item.kind === "prompt" && item.became !== "taken");
  const list = useRef(/** @type {{show: (item: Item) => void} | null} */ (null));
  const jumpTurn = (/** @type {number} */ by) => {
    const tops = turns.map((item) => document.getElementById(item.key)?.getBoundingClientRect().top ?? -Infinity);
    const at = by > 0 ? tops.findIndex((top) => top > 130) : tops.findLastIndex((top) => top < 60);
    if (turns[at]) list.current?.show(turns[at]);
  };
  if (problem && !timeline.items.length) return html`<main tabindex="-1" class="page"><${Empty} icon="sessions" title=${problem}><p><a href="#/sessions">All sessions</a></p><//></main>`;
  return html`<main class="timeline-page" tabindex="-1">
    <header class="session-head"><div class="title-line"><a class="back ghost button" href="#/sessions" aria-label="All sessions"><${Icon} name="chevron" /></a><h1>${title}</h1>
        ${(session || isLoaded) && html`<${StateChip} state=${state} />`}</div>
      <div class="facts"><span>${shortPath(transcript?.cwd ?? timeline.init?.cwd ?? (session ? directoryOf(session) : ""))}</span>
        ${timeline.model && html`<span class="model">${timeline.model}</span>`}<${ContextBar} timeline=${timeline} />
        ${timeline.cost + timeline.spent > 0 && html`<span title="Cost of this session">${formatCost(timeline.cost + timeline.spent)}</span>`}
        <span class="spacer"></span>
        <button class="ghost small" onClick=${() => setPanel("turns")}>${turns.length} ${turns.length === 1 ? "turn" : "turns"}</button>
        <button class="ghost small" onClick=${() => setPanel("changes")}>What changed</button></div></header>
    <${ItemList} timeline=${timeline} version=${timeline.version} isLoaded=${isLoaded} handle=${list} isRunning=${state === "running"} />
    <footer class="dock">
      ${timeline.todos.length > 0 && html`<${Boundary} what="list" version=${timeline.version}><${Todos} todos=${timeline.todos} /><//>`}
      ${[...listLogins(timeline, session)].map(([server, login]) => html`<${LoginCard} key=${`login ${server}`} session=${id} server=${server} login=${login} />`)}
      ${asks.map((ask, at) => html`<${AskCard} key=${ask.id} ask=${ask} isActive=${at === 0} withSession=${false} />`)}
      <${Composer} id=${id} session=${session} transcript=${transcript} timeline=${timeline} state=${state} onInterrupt=${interrupt} />
    </footer>
    ${panel === "changes" && html`<${Changes} timeline=${timeline} onClose=${() => setPanel("")} />`}
    ${panel === "turns" && html`<${Dialog} title="Turns" onClose=${() => setPanel("")}>${!turns.length && html`<p class="hint">No prompts yet.</p>`}
      <ol class="turns">${turns.map((item) => html`<li><button class="ghost" onClick=${() => (setPanel(""), list.current?.show(item))}>${item.text.slice(0, 120) || "A picture"}</button></li>`)}</ol><//>`}
  </main>`;
}

/** @param {{timeline: Timeline}} props */
function ContextBar({ timeline }) {
  if (!timeline.context) return null;
  const { context, contextWindow } = timeline;
  const label = contextWindow ? `${formatTokens(context)} of ${formatTokens(contextWindow)} tokens of context` : `${formatTokens(context)} tokens of context`;
  return html`<span class="context" title=${label}>${contextWindow > 0 && html`<meter min="0" max=${contextWindow} high=${contextWindow * 0.8} value=${context} aria-label=${label}></meter>`}${contextWindow ? `${Math.round((100 * context) / contextWindow)}% of context` : `${formatTokens(context)} tokens`}</span>`;
}

/**
 * The items. At first only the last ones are there; those before come when one scrolls up to them.
 * @param {{timeline: Timeline, version: number, isLoaded: boolean, isRunning: boolean, handle: {current: any}}} props
 */
function ItemList({ timeline, isLoaded, isRunning, handle }) {
  const [count, setCount] = useState(FIRST_ITEMS);
  const [, redraw] = useReducer((known) => known + 1, 0);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const sentinel = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(true);
  const before = useRef({ count, height: 0 });
  const target = useRef("");
  const { items } = timeline;
  const start = Math.max(0, items.length - count);
  handle.current = {
    show(/** @type {Item} */ item) {
      follows.current = false;
      target.current = item.key;
      setCount((known) => Math.max(known, items.length - items.indexOf(item) + 5));
      redraw(null);
    },
  };
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (before.current.count !== count && !follows.current && !target.current) element.scrollTop += element.scrollHeight - before.current.height;
    else if (follows.current) element.scrollTop = element.scrollHeight;
    if (target.current) scrollTo(target.current);
    target.current = "";
    before.current = { count, height: element.scrollHeight };
  });
  useEffect(() => {
    if (!sentinel.current || !start) return;
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      if (box.current) before.current.height = box.current.scrollHeight;
      setCount((known) => known + MORE_ITEMS);
    }, { root: box.current, rootMargin: "800px" });
    observer.observe(sentinel.current);
    return () => observer.disconnect();
  }, [start === 0, count]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => follows.current && (element.scrollTop = element.scrollHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    const element = box.current;
    if (element) follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
  };
  return html`<div class="scroller" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Timeline" aria-busy=${isRunning || !isLoaded}>
    <div class="column">
      ${start > 0 && html`<p class="hint earlier" ref=${sentinel}>${start} earlier ${start === 1 ? "entry" : "entries"}</p>`}
      ${!isLoaded && html`<p class="hint" role="status">Loading …</p>`}
      ${isLoaded && !items.length && html`<${Empty} icon="sessions" title="No messages yet"><p>Write the first prompt below.</p><//>`}
      ${items.slice(start).map(renderItem)}
      ${isRunning && html`<p class="working"><i class="spinner"></i>${timeline.status === "compacting" ? "Compacting the conversation" : "Working"}</p>`}
    </div></div>`;
}

/** Heights of items that were never shown are guesses, so the first jump may miss. @param {string} key @param {number} [steady] frames in which it stood right @param {number} [frames] */
function scrollTo(key, steady = 0, frames = 0) {
  const element = document.getElementById(key);
  const before = element?.getBoundingClientRect().top;
  element?.scrollIntoView({ block: "start" });
  const moved = element?.getBoundingClientRect().top !== before;
  if (element && steady < 5 && frames < 90) requestAnimationFrame(() => scrollTo(key, moved ? 0 : steady + 1, frames + 1));
}

/** @param {Item} item */
function renderItem(item) {
  const data = () => ({ name: item.name, input: item.input, text: item.text });
  return html`<${Boundary} key=${item.key} what="entry" version=${item.version} data=${data}><${Entry} item=${item} version=${item.version} /><//>`;
}

/** An item; drawn again only when it has changed. @extends {Component<{item: Item, version: number}>} */
class Entry extends Component {
  /** @param {{item: Item, version: number}} next */
  shouldComponentUpdate(next) {
    return next.version !== this.props.version || next.item !== this.props.item;
  }

  /** @param {{item: Item, version: number}} props */
  render({ item }) {
    const body = VIEWS[item.kind](item);
    return body && html`<div class=${`item ${item.kind}`} id=${item.key}>${body}</div>`;
  }
}

/** @param {Item} item */
function renderPictures(item) {
  return item.images.map((image) => html`<img class="picture" src=${image} alt="Picture in the prompt" />`);
}

/** @param {{item: Item}} props */
function Prompt({ item }) {
  const [shown, more] = useCut(item.text);
  return html`<div class="bubble-box"><h2 class="bubble"><span class="hidden">You: </span>${shown}</h2>${more}</div>${renderPictures(item)}
    ${item.became && Object.hasOwn(OUTCOME_WORDS, item.became) && html`<p class="became"><${Icon} name="check" />${OUTCOME_WORDS[item.became]}</p>`}`;
}

/** @param {{text: string, tone?: string}} props */
function Notice({ text, tone = "info" }) {
  const [shown, more] = useCut(text);
  return html`<p class=${`notice ${tone}`} role=${tone === "error" ? "alert" : "note"}>${shown}</p>${more}`;
}

/** @type {Record<Item["kind"], (item: Item) => any>} */
const VIEWS = {
  prompt: (item) => html`<${Prompt} item=${item} />`,
  text: (item) => html`<${Markdown} text=${item.text} />`,
  thinking: (item) => html`<details class="thinking" open=${!item.done}><summary>${item.done ? "Thought" : "Thinking …"}</summary><${Markdown} text=${item.text} /></details>`,
  tool: (item) => html`<${ToolCall} item=${item} version=${item.version} renderItem=${renderItem} />`,
  notice: (item) => html`<${Notice} text=${item.text} tone=${item.tone} />`,
  result: (item) => html`${item.failed && html`<${Notice} text=${item.text || describeFailure(item.detail)} tone="error" />`}
    <p class="turn-end"><span>${formatDuration(item.detail.duration_ms ?? 0)}</span><span>${item.detail.num_turns ?? 1} ${item.detail.num_turns === 1 ? "step" : "steps"}</span></p>`,
};

/** @param {any} result */
function describeFailure(result) {
  /** @type {Record<string, string>} */
  const words = { error_max_turns: "The turn limit was reached.", error_max_budget_usd: "The budget was used up.", error_during_execution: "The turn was interrupted or failed." };
  return (Object.hasOwn(words, result.subtype) && words[result.subtype]) || "The turn failed.";
}

/** @param {{todos: import("./fold.js").Todo[]}} props */
function Todos({ todos }) {
  const done = todos.filter((todo) => todo.status === "completed").length;
  const current = todos.find((todo) => todo.status === "in_progress");
  return html`<details class="todos"><summary><progress max=${todos.length} value=${done} aria-label="Done"></progress>${done} of ${todos.length} done${current ? html`<span class="what">${current.content}</span>` : ""}</summary>
    <ul>${todos.slice(0, MAX_TODOS).map((todo) => html`<li class=${todo.status}><span aria-hidden="true">${todo.status === "completed" ? "✓" : todo.status === "in_progress" ? "▸" : "○"}</span>${todo.content}</li>`)}${todos.length > MAX_TODOS && html`<li>${todos.length - MAX_TODOS} more</li>`}</ul></details>`;
}

/** @param {{timeline: Timeline, onClose: () => void}} props */
function Changes({ timeline, onClose }) {
  const changes = listChanges(timeline).map(({ file, edits }) => ({ file, hunks: edits.flatMap((edit) => listHunks(edit.name, edit.input, edit.patch)) }));
  return html`<${Dialog} title="What changed" onClose=${onClose} wide>
    ${!changes.length && html`<${Empty} icon="file" title="No files changed"><p>Files edited or created by tools appear here. Changes made by shell commands do not.</p><//>`}
    ${changes.map(({ file, hunks }) => {
      const { added, removed } = countLines(hunks);
      return html`<details class="change" open=${changes.length < 6}><summary><code>${reveal(file)}</code><span class="counts"><b class="plus">+${added}</b> <b class="minus">−${removed}</b></span></summary><${Diff} hunks=${hunks} label=${`Changes to ${reveal(file)}`} /></details>`;
    })}<//>`;
}

/** @param {{id: string, session?: import("./store.js").Session, transcript?: any, timeline: Timeline, state: string, onInterrupt: () => void}} props */
function Composer({ id, session, transcript, timeline, state, onInterrupt }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState(/** @type {string[]} */ ([]));
  const [problem, setProblem] = useState("");
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const changing = useRef(/** @type {Promise<any>} */ (Promise.resolve()));
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, 240)}px`;
  }, [text]);
  const attempt = async (/** @type {() => Promise<any>} */ work) => {
    setProblem("");
    try {
      await work();
      return true;
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      return false;
    }
  };
  const busy = state === "running" || state === "waiting";
  const takeBack = () => {
    for (const [key, draft] of given) {
      const outcome = timeline.words.get(key);
      if (!outcome) continue;
      given.delete(key);
      if (outcome !== "returned") continue;
      setText((known) => [draft.text, known].filter(Boolean).join("\n"));
      setImages((known) => [...draft.images, ...known]);
    }
  };
  useEffect(takeBack, [timeline.version]);
  /** @param {"steer" | "prompt"} how words for the turn that runs, or a prompt of their own */
  const send = async (how) => {
    const said = text.trim();
    if (!said && !images.length) return;
    const blocks = images.map((image) => ({ type: "image", source: { type: "base64", media_type: image.slice(5, image.indexOf(";")), data: image.slice(image.indexOf(",") + 1) } }));
    const prompt = images.length ? [...blocks, ...(said ? [{ type: "text", text: said }] : [])] : said;
    setText("");
    setImages([]);
    await changing.current; // a model or mode that was chosen before the prompt counts for it
    const sent = await attempt(async () => {
      if (!session) return startSession({ resume: id, ...(transcript?.cwd ? { cwd: transcript.cwd } : {}) }, prompt);
      const answer = await call("POST", `v1/sessions/${id}/${how}`, { prompt });
      if (answer.steering) given.set(answer.steering, { text: said, images });
      takeBack();
    });
    if (!sent) (setText(said), setImages(images));
  };
  const sendNow = () => send(busy && session ? "steer" : "prompt");
  const queue = () => send("prompt");
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), event.altKey ? queue() : sendNow());
    else if (event.key === "Escape") field.current?.blur();
  };
  const onPaste = async (/** @type {ClipboardEvent} */ event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => /^image\/(png|jpeg|gif|webp)$/.test(file.type));
    for (const file of files) setImages([...images, await readAddress(file)]);
  };
  if (session?.kind === "wire") return html`<p class="hint composer-note">A program drives this session over a WebSocket. You can read along, but not write.</p>`;
  const change = (/** @type {object} */ settings) => {
    const before = changing.current;
    changing.current = attempt(async () => (await before, call("POST", `v1/sessions/${id}/settings`, settings)));
  };
  const isEmpty = !text.trim() && !images.length;
  return html`<div class="composer">
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${session?.steering?.length ? html`<ol class="queued given" aria-label="Being added to the turn">${session.steering.map((words) => html`<li key=${words.id}><span>${words.title || "A picture"}</span><small>read at the next step</small></li>`)}</ol>` : null}
    ${session?.queued?.length ? html`<ol class="queued" aria-label="Queued prompts">${session.queued.map((prompt) => html`<li key=${prompt.id}><span>${prompt.title || "A picture"}</span><small>after this turn</small>
      <button class="ghost" aria-label=${`Withdraw: ${prompt.title}`} onClick=${() => attempt(() => call("DELETE", `v1/sessions/${id}/prompts/${prompt.id}`))}><${Icon} name="close" /></button></li>`)}</ol>` : null}
    ${images.length > 0 && html`<div class="thumbs">${images.map((image, at) => html`<button aria-label="Remove the picture" onClick=${() => setImages(images.filter((_, other) => other !== at))}><img src=${image} alt="" /></button>`)}</div>`}
    <textarea ref=${field} rows="1" value=${text} aria-label="Prompt" onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}
      placeholder=${busy ? "Add to the running turn …" : session ? "What next?" : "Resume this conversation …"}></textarea>
    <div class=${`composer-bar ${busy ? "busy" : ""}`}>
      ${session && html`<label><span class="hidden">Permission mode</span><select value=${timeline.mode || session.start?.options?.permission_mode || "default"} onChange=${(/** @type {any} */ event) => change({ permission_mode: event.target.value })}>${MODES.map(([mode, label]) => html`<option value=${mode}>${label}</option>`)}</select></label>
      <${ModelChoice} model=${session.start?.options?.model ?? ""} onChange=${(/** @type {string} */ model) => change({ model })} />`}
      <span class="spacer"></span>
      ${busy && html`<button class="interrupt" onClick=${onInterrupt} aria-label="Interrupt"><${Icon} name="stop" />Interrupt</button>`}
      ${busy && session ? html`<button disabled=${isEmpty} onClick=${queue} title="Send as a separate prompt after this turn">Queue <kbd>Alt ↵</kbd></button>
      <button class="primary" disabled=${isEmpty} onClick=${sendNow} title="Claude Code reads it at the next step of this turn"><${Icon} name="send" />Send now <kbd>↵</kbd></button>`
        : html`<button class="primary send" disabled=${isEmpty} onClick=${sendNow} aria-label="Send the prompt"><${Icon} name="send" /></button>`}</div>
  </div>`;
}

/** A model of the list, or any name. Empty while it has the focus: a browser lists only what fits the text. @param {{model: string, onChange: (model: string) => void}} props */
function ModelChoice({ model, onChange }) {
  const [typed, setTyped] = useState(/** @type {string | null} */ (null));
  const onInput = (/** @type {any} */ event) => {
    setTyped(event.target.value);
    if (event.inputType === "insertReplacementText") event.target.blur(); // picked from the list
  };
  const onBlur = (/** @type {any} */ event) => {
    const chosen = event.target.value.trim();
    setTyped(null);
    if (chosen && chosen !== model) onChange(chosen);
  };
  const onKeyDown = (/** @type {any} */ event) => {
    if (event.key === "Escape") event.target.value = "";
    if (event.key === "Enter" || event.key === "Escape") event.target.blur();
  };
  return html`<label><span class="hidden">Model</span><input list="models-of-session" value=${typed ?? model} placeholder=${model || "default model"} autocomplete="off" spellcheck="false"
      onFocus=${() => setTyped("")} onInput=${onInput} onBlur=${onBlur} onKeyDown=${onKeyDown} />
    <datalist id="models-of-session">${MODELS.map((each) => html`<option value=${each}></option>`)}</datalist></label>`;
}

/** @param {File} file @returns {Promise<string>} */
function readAddress(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
