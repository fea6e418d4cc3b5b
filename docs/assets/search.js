/* Finds pages for what is typed into the search box: the worker of the theme, with MiniSearch, which the site puts
   before this file. Any word may match; words that say nothing are dropped; words of one meaning find each other; titles
   count more than text, guides more than the API. The theme shows the results. */
"use strict";

const SAY_NOTHING = new Set(
  `a about again all already an and any are as at be been but by can cannot could did do does doing for from get got had
  has have having how i if in into is it its just like make me my need no not of on one only or our out over should so
  some than that the their them then there these they this to up us use used using want was way we were what when where which
  while who why will with without would you your`.split(/\s+/),
);

/* Each line: words that a reader uses for one thing. */
const SAME = `
picture image photo screenshot vision attachment
cancel interrupt stop abort kill ctrl
key apikey credential login token auth authentication
login oauth account subscription
jupyter notebook ipython colab
disconnect hang close leave visitor
timeout hang stuck slow silence deadline
proxy network firewall certificate
windows wsl macos linux
limit budget cap cost
cost price money spend usage billing
tool function
resume continue
permission approve approval allow confirm
block deny forbid refuse prevent
callback function
test pytest mock fake key
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
console browser dashboard
claude cli
tomorrow later day
conversation session chat
prompt instruction
database store postgres sqlite redis
ssh remote machine host
`.trim().split("\n").map((line) => line.split(" "));

/* How much a result counts in a part, a group or on a page of the site. */
const WEIGHTS = {
  Guides: 1.3, Reference: 1, Start: 1, Understand: 0.7, API: 0.2, Project: 0.35, "Moving here": 0.5,
  "Error texts": 0.3, "Where names are": 0.4, Programs: 0.6, Tutorial: 0.9, Decisions: 0.5, Changelog: 0.5,
};
const SAME_WEIGHT = 0.7;
const FURTHER_SECTION = 0.5;
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
  return words.flatMap((word) => [word, ...(CAMEL.test(word) ? word.split(CAMEL) : [])]);
}

let items = [];
let index;
let found = [];

/** Takes the sections of all pages. */
function load(given) {
  items = given;
  index = new MiniSearch({
    fields: ["title", "page", "text"],
    tokenize: listWords,
    processTerm: reduce,
    searchOptions: {
      boost: { title: 3, page: 2, text: 1 },
      weights: { fuzzy: 0.1, prefix: 0.3 },
      fuzzy: (term) => (term.length > 5 ? 0.2 : false),
    },
  });
  index.addAll(items.map(({ title, text, path }, id) => ({ id, title, text, page: path[path.length - 1] ?? "" })));
}

const findWeight = (item) => item.path.reduce((weight, part) => weight * (WEIGHTS[part] ?? 1), 1);

/** The sections that fit, best first: of each page its best one, and further ones where they fit well, too. */
function search(text) {
  const asked = [...new Set(listWords(text).map(reduce).filter(Boolean))];
  const meanings = new Map(asked.map((word) => [word, new Set([word])]));
  for (const words of reduced) {
    for (const word of words) {
      if (asked.includes(word)) for (const other of words) if (!asked.includes(other)) meanings.set(other, (meanings.get(other) ?? new Set()).add(word));
    }
  }
  const terms = [...meanings.keys()];
  const last = asked[asked.length - 1];
  const hits = index.search(terms.join(" "), {
    tokenize: () => terms,
    processTerm: (term) => term,
    prefix: (term) => term === last,
    boostTerm: (term) => (asked.includes(term) ? 1 : SAME_WEIGHT),
  });
  const scored = hits.map(({ id, score, queryTerms, terms: matched }) => {
    const met = new Set(queryTerms.flatMap((term) => [...meanings.get(term)]));
    return { id, matched, score: (score / queryTerms.length) * met.size * findWeight(items[id]) };
  });
  scored.sort((one, other) => other.score - one.score);
  const seen = new Map();
  for (const hit of scored) {
    const page = items[hit.id].path.includes("API") ? items[hit.id].location : items[hit.id].location.split("#")[0];
    const before = seen.get(page) ?? 0;
    hit.score *= FURTHER_SECTION ** before;
    seen.set(page, before + 1);
  }
  return scored.sort((one, other) => other.score - one.score);
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
