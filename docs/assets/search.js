/* Finds pages for what is typed into the search box: the worker of the theme, with MiniSearch, which the site puts
   before this file. Any word may match; words that say nothing are dropped; words of one meaning find each other; titles
   count more than text, guides more than the API. The theme shows the results. */
"use strict";

const SAY_NOTHING = new Set(
  `a about again all already an and any are as at be been but by can cannot could did do does doing for from get got had
  has have having how i if in into is it its just like make me my need no not of on one only or our out over should so
  some than set that the their them then there these they this to up us use used using want was way we were what when where which
  while who why will with without would you your`.split(/\s+/),
);

/* Each line: words that a reader uses for one thing. */
const SAME = `
picture image photo screenshot vision attachment
cancel interrupt stop abort kill ctrl
key apikey credential login token auth authentication
login oauth account subscription
jupyter notebook ipython colab
disconnect hang leave
client visitor
timeout hang stuck slow silence deadline
proxy network firewall certificate
windows wsl macos linux
limit budget cap cost
cost price money spend usage billing
tool function
resume continue
permission approve approval allow confirm inbox
block deny forbid refuse prevent
callback function
test pytest mock fake
exception error failure crash
retry overload backoff
batch bulk thousand many fleet
install setup download
find found missing path
docker container kubernetes deploy
trace tracing opentelemetry otel metric log
json schema pydantic typed structured dataclass output
thread blocking sync synchronous
asyncio trio await loop event
stream streaming delta live
fork branch copy
migrate port move switch
fast faster slow slower speed performance benchmark latency
offline local
server web http fastapi flask django
editor zed jetbrains neovim vscode ide
console browser dashboard inbox
claude cli
tomorrow later day
conversation session chat
prompt instruction
database store postgres sqlite redis
ssh remote machine host
`.trim().split("\n").map((line) => line.split(" "));

/* How much a result counts in a part, a group or on a page of the site. */
const WEIGHTS = {
  Guides: 1.3, Reference: 1, Start: 1, Understand: 1, API: 0.2, Project: 0.35, "Moving here": 0.5,
  "Error texts": 0.3, "Where names are": 0.4, Programs: 0.6, Tutorial: 0.9, Decisions: 0.5, Changelog: 0.5,
};
const SAME_WEIGHT = 0.8;
const FURTHER_SECTION = 0.5;
const PAGE_SHARE = 0.15;
const COVERAGE = 1.5;
const WORD = /[\p{L}\p{N}]+/gu;
const CAMEL = /(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/;
const TAG = /<[^>]*>|&[a-z]+;/g;

/** The form in which a word is compared: without case and the endings of plurals and verbs; null for "the" and "how". */
function reduce(word) {
  const plain = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  if (SAY_NOTHING.has(plain)) return null;
  if (plain.length < 4 || plain === "blocking") return plain;
  let root = plain.replace(/ies$/, "y").replace(/([^su])s$/, "$1");
  if (root.length > 4) root = root.replace(/(ing|ed)$/, "");
  if (root.length > 3) root = root.replace(/e$/, "");
  return root.replace(/([^aeiou])\1$/, "$1");
}

const reduced = SAME.map((words) => words.map(reduce));

/** The words of a text with tags; a name such as `RateLimitError`, and its parts. */
function listWords(text) {
  const words = text.replace(TAG, " ").match(WORD) ?? [];
  return words.flatMap((word) => [word, ...(CAMEL.test(word) ? word.split(CAMEL).filter((part) => part.length > 2) : [])]);
}

let items = [];
let index;
let found = [];
let known = new Set();

/** Takes the sections of all pages. */
function load(given) {
  items = given;
  known = new Set(items.flatMap(({ title, text }) => [...listWords(title), ...listWords(text)].map(reduce)));
  index = new MiniSearch({
    fields: ["title", "page", "text", "whole"],
    tokenize: listWords,
    processTerm: reduce,
    searchOptions: {
      boost: { title: 2, page: 2, text: 1, whole: 0.6 },
      weights: { fuzzy: 0.1, prefix: 0.3 },
      fuzzy: (term) => (term.length > 5 && !known.has(term) ? 0.2 : false),
    },
  });
  const pages = new Map();
  for (const { location, path, title, text } of items) {
    const page = location.split("#")[0];
    if (!path.includes("API")) pages.set(page, `${pages.get(page) ?? ""} ${title} ${text}`);
  }
  index.addAll(items.map(({ location, title, text, path }, id) => (
    { id, title, text, page: path[path.length - 1] ?? "", whole: pages.get(location) ?? "" }
  )));
}

const byScore = (one, other) => other.score - one.score;
const findWeight = (item) => item.path.reduce((weight, part) => weight * (WEIGHTS[part] ?? 1), 1);

/** What a word finds: for each section, the better of the word itself and of another one for the same thing. */
function findMeaning(word, isLast) {
  const best = new Map();
  const others = new Set(reduced.filter((words) => words.includes(word)).flat());
  for (const term of others.add(word)) {
    const weight = term === word ? 1 : SAME_WEIGHT;
    const settings = { tokenize: () => [term], processTerm: (same) => same, prefix: isLast && term === word };
    for (const { id, score, terms } of index.search(term, settings)) {
      const before = best.get(id) ?? { score: 0, matched: [] };
      best.set(id, { score: Math.max(before.score, score * weight), matched: [...before.matched, ...terms] });
    }
  }
  return best;
}

/** The sections that fit, best first: of each page its best one, and further ones where they fit well, too. */
function search(text) {
  const asked = [...new Set(listWords(text).map(reduce).filter(Boolean))];
  const sums = new Map();
  for (const word of asked) {
    for (const [id, { score, matched }] of findMeaning(word, word === asked[asked.length - 1])) {
      const sum = sums.get(id) ?? { id, score: 0, met: 0, matched: [] };
      sums.set(id, { id, score: sum.score + score, met: sum.met + 1, matched: [...sum.matched, ...matched] });
    }
  }
  const hits = [...sums.values()];
  for (const hit of hits) hit.score *= (hit.met / asked.length) ** COVERAGE * findWeight(items[hit.id]);
  const pages = new Map();
  for (const hit of hits.sort(byScore)) {
    const { path, location } = items[hit.id];
    const page = path.includes("API") ? location : location.split("#")[0];
    pages.set(page, [...(pages.get(page) ?? []), hit]);
  }
  for (const [first, ...further] of pages.values()) {
    for (const { score } of further.slice(0, 3)) first.score += PAGE_SHARE * score;
    further.forEach((hit, at) => { hit.score *= FURTHER_SECTION ** (at + 1); });
  }
  return hits.sort(byScore);
}

/** Where the words that matched stand in a text with tags. */
function findRanges(text, matched) {
  const ranges = [];
  const plain = text.replace(TAG, (tag) => " ".repeat(tag.length));
  for (const { 0: word, index: start } of plain.matchAll(WORD)) {
    if (matched.includes(reduce(word))) ranges.push({ start, end: start + word.length, value: word.length });
  }
  return ranges;
}

function show({ id, matched }) {
  const matches = ["title", "text"].map((field) => ({
    field, score: 0, value: { highlight: { ranges: findRanges(items[id][field], matched) } },
  }));
  return { id, matches };
}

/** One page of results, in the form that the theme understands. */
function answer({ input, page }) {
  if (!page) found = typeof input === "string" ? search(input) : [];
  const { id = Date.now(), size = 10, from = 0 } = page ?? {};
  const pagination = { total: found.length };
  if (from > 0) pagination.prev = { id, size, from: from - size };
  if (from + size < found.length) pagination.next = { id, size, from: from + size };
  return { items: found.slice(from, from + size).map(show), pagination, aggregations: [] };
}

self.onmessage = ({ data: { type, data } }) => {
  try {
    if (type === 0) {
      load(data.items);
      self.postMessage({ type: 1 });
    } else if (type === 2) {
      self.postMessage({ type: 3, data: answer(data) });
    }
  } catch (error) {
    console.error(error);
    self.postMessage({ type: 4 });
  }
};
