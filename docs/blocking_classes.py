"""Makes `pilothouse/sync/generated.py`: the blocking form of the classes and functions of `pilothouse.client`.

`python docs/reference.py` writes it. Signatures, types and docstrings are those of the asynchronous classes; the tables
here list everything that differs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parent.parent / "packages" / "pilothouse" / "src" / "pilothouse"
GENERATED = CORE / "sync" / "generated.py"

CLASSES = {
    "McpLogin": ("client/logins.py", "GroupWrapper[logins.McpLogin]"),
    "ClaudeLogin": ("client/logins.py", "GroupWrapper[logins.ClaudeLogin]"),
    "McpControls": ("client/controls.py", "GroupWrapper[controls.McpControls]"),
    "TaskControls": ("client/controls.py", "GroupWrapper[controls.TaskControls]"),
    "SettingsControls": ("client/controls.py", "GroupWrapper[controls.SettingsControls]"),
    "InfoControls": ("client/controls.py", "GroupWrapper[controls.InfoControls]"),
    "Steering": ("client/queries.py", "SteeringWrapper"),
    "Query": ("client/queries.py", "QueryWrapper[OutputT]"),
    "Session": ("client/sessions.py", "SessionWrapper"),
    "Agent": ("client/agent.py", "AgentWrapper"),
}
"""The asynchronous classes: where each is, and the base of its blocking form."""

FUNCTIONS = ("configure", "default_agent", "set_default_agent", "query", "session")
"""Functions of `client/agent.py`."""

NAMES = {("Query", "aclose"): "close"}
"""Methods that are called differently."""

LEFT_OUT = {("Session", "aclose")}
"""Methods without a blocking form: `close` is the same."""

ARGUMENTS = {"prompt": "iterate_in_thread(prompt)", "on_message": "hand_to_caller(on_message)"}
"""Arguments that are converted before they are handed on."""

RESULTS = {
    "Agent": "return self.wrap({value})",
    "ClaudeLogin": "return ClaudeLogin(self._call({work}), self._call)",
    "Health": "return self._call(partial(call_on_loop, {work}))",
    "McpLogin": "return McpLogin(self._call({work}), self._call)",
    "MessageIterator": "return MessageIterator({value}, self._call)",
    "MessageSubscription": "return MessageSubscription(self._call(partial(call_on_loop, {work})), self._portal)",
    "Query": "return Query({value}, on_message)",
    "Self": "self._call({work})\nreturn self",
    "Session": "return Session({work})",
    **{name: f"return {name}({{value}}, self._call)" for name in CLASSES if name.endswith("Controls")},
}
"""Bodies by the type that a method returns, where it is neither a plain value nor waited for.

`value` is the call of the asynchronous method, `work` is something that makes this call.
"""

BODIES = {
    ("Query", "aclose"): "self._close({work})",
    ("Query", "result"): "return self._read_result({work})",
    ("Query", "steer"): "return Steering(self._call({work}), self._call, self)",
    ("Session", "close"): "self._close({work})",
    ("Session", "fork"): "self._portal.check_process()\nreturn Session({work})",
    ("Session", "queries"): "return self._find_kept({value})",
    ("Session", "query"): ("self._portal.check_process()\nreturn self._keep(Query({value}, on_message, self._portal))"),
    ("Session", "steer"): (
        "steering = self._call({work})\n"
        "return Steering(steering, self._call, self._find_or_keep(steering.query, Query))"
    ),
    ("Steering", "query"): "return self._found_query",
    ("", "configure"): "client.configure({arguments})\nreturn default_agent()",
    ("", "default_agent"): "return wrap_default(Agent)",
    ("", "query"): "return default_agent().query({arguments})",
    ("", "session"): "return default_agent().session({arguments})",
    ("", "set_default_agent"): "return replace_default(agent, Agent)",
}
"""Bodies of methods and functions that no other rule makes."""

TEXTS = {
    r"\(await (\w+\.query\([^()]*\))\)": r"\1.result()",
    r"await (\w+\.query\([^()]*\))": r"\1.result()",
    r"await query +#": "query.result()             #",
    r"await (\w+\.steer\([^()]*\))": r"\1",
    "with the words: await or read it": "with the words: read it",
    "async with": "with",
    "async for": "for",
    'text, end="", flush=True': 'text, end=""',
    r"Send a prompt\. Await the query for the whole answer, or loop over it for messages as they come\.": (
        "Make a query: `.result()` returns the whole answer, a loop yields messages as they come."
    ),
    r"Send a prompt with the default agent: await the query for the whole answer, or loop over it for messages\.": (
        "Make a query with the default agent: `.result()` returns the whole answer, a loop yields messages."
    ),
    "Send a prompt in this conversation": "Make a query in this conversation",
    "when it is awaited or read": "when it is read",
    "in order, while the query is awaited;": "in order, in the thread that waits in `result()`;",
    "when `await` returns": "when `result()` returns",
    "warns, as with a coroutine": "warns",
    "any task may start one": "any thread may start one",
    "(safe )?from any task": "from any thread",
    "shared by any tasks and threads": "shared by threads",
    r"`aclose` ends it": "`close` ends it",
    r"Within `pilothouse_testing\.as_default` it changes the agent of that context instead\. ": "",
    "is not an `Agent`": "is not an agent of `pilothouse.sync`",
    "for the whole process": "here and in `pilothouse`",
}
"""Patterns in docstrings, and what stands there instead. A blank matches any white space; each has to be found."""

NOTES = {
    "Agent": "A prompt that is a plain iterable is read in its own thread; an async one, and the callback `stderr`, "
    "run on the event loop of `pilothouse.sync`.",
    "Query": "Any thread may use it. `on_message` runs in the thread that waits in `result()`, with its context "
    "variables; an async one awaits on the event loop of `pilothouse.sync`. When Ctrl-C or another exception ends the "
    "wait, the process is ended too, unless a `with` block owns it. On that event loop, and after a fork, its methods "
    "raise `UsageError`.",
    "Session": "Any thread may use and close it. A query whose wait is ended by Ctrl-C is stopped, and the session "
    "continues. Hooks, permission callbacks and tools run on the event loop of `pilothouse.sync`, plain ones in worker "
    "threads, independent of the program's threads; plain ones may use this object. The `session` passed to them is "
    "that of `pilothouse`, for async ones. A session belongs to the process that made it: it cannot be used after a "
    "fork. Dropping it ends its child.",
}
"""What is added to the docstrings of classes."""

HEAD = '''"""The blocking classes and functions, written by `python docs/reference.py` from the asynchronous ones.

What differs from them is in `wrappers.py`, and in the tables of `docs/blocking_classes.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pilothouse import client
from pilothouse.client import controls, logins
from pilothouse.sync.wrappers import (
    AgentWrapper,
    GroupWrapper,
    MessageIterator,
    MessageSubscription,
    QueryWrapper,
    SessionWrapper,
    SteeringWrapper,
    call_on_loop,
    hand_to_caller,
    iterate_in_thread,
    replace_default,
    wrap_default,
)
'''

ITEM = re.compile(r"    (\*\*)?\w+(, \w+)*: ")
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Example):+")
KEPT_DECORATORS = frozenset({"hide_arguments", "overload", "property", "show_options", "user_class"})
OWN_NAMES = frozenset({*CLASSES, *FUNCTIONS, "MessageIterator", "MessageSubscription"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


class BlockingModule:
    """The text of the module, class by class, and the imports that it turns out to need."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._typing_imports: dict[str, str] = {}
        self._found_texts: set[str] = set()

    def make(self) -> str:
        """Return the whole module, formatted."""
        parts = [self._make_class(name, *where) for name, where in CLASSES.items()]
        parts += [text for name in FUNCTIONS for text in self._make_functions(name)]
        if unused := TEXTS.keys() - self._found_texts:
            raise ValueError(f"TEXTS that no docstring has: {sorted(unused)}")
        typing_only = "".join(
            f"    {line}\n" for name, line in self._typing_imports.items() if name not in self._imports
        )
        head = HEAD + "\n".join(self._imports.values()) + f"\n\nif TYPE_CHECKING:\n{typing_only}\n\n"
        return format_code(head + "\n\n".join(parts))

    def _make_class(self, name: str, path: str, base: str) -> str:
        tree = self._read(path)
        node = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
        self._note_names(base, tree, path)
        lines = [*self._decorators(node, tree, path), f"class {name}({base}):"]
        lines.append(self._docstring(node, 4, NOTES.get(name)))
        if base.startswith(("Group", "Agent", "Steering")):
            lines.append("    __slots__ = ()\n")
        methods = [each for each in node.body if isinstance(each, Function) and not each.name.startswith("_")]
        kept = [each for each in methods if (name, each.name) not in LEFT_OUT]
        lines += [textwrap.indent(self._make_function(name, each, tree, path), "    ") for each in kept]
        return "\n".join(lines) + "\n"

    def _make_functions(self, name: str) -> Iterator[str]:
        path = "client/agent.py"
        tree = self._read(path)
        for node in tree.body:
            if isinstance(node, Function) and node.name == name:
                yield self._make_function("", node, tree, path)

    def _make_function(self, owner: str, node: Function, tree: ast.Module, path: str) -> str:
        assert node.returns is not None
        returns, is_waiting = ast.unparse(node.returns), isinstance(node, ast.AsyncFunctionDef)
        if match := re.fullmatch(r"Coroutine\[Any, Any, (.+)\]", returns):
            returns, is_waiting = match[1], True
        self._note_names(f"{ast.unparse(node.args)} {returns}", tree, path)
        lines = self._decorators(node, tree, path)
        is_overload = "@overload" in lines
        name = NAMES.get((owner, node.name), node.name)
        lines.append(f"def {name}({ast.unparse(node.args)}) -> {returns}:{' ...' if is_overload else ''}")
        if not is_overload:
            lines.append(self._docstring(node, 8 if owner else 4))
            lines.append(textwrap.indent(self._body(owner, node, returns, is_waiting=is_waiting), "    "))
        return "\n".join(lines) + "\n"

    def _body(self, owner: str, node: Function, returns: str, *, is_waiting: bool) -> str:
        arguments = ", ".join(list_arguments(node))
        if not owner:
            return BODIES["", node.name].format(arguments=arguments)
        method = f"self._inner.{node.name}"
        is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)
        converted = ", ".join(list_arguments(node, ARGUMENTS))
        value = method if is_property else f"{method}({converted})"
        work = f"partial({method}, {converted})" if arguments else method
        rule = BODIES.get((owner, node.name)) or RESULTS.get(returns.partition("[")[0])
        if rule is None:
            rule = "return self._call({work})" if is_waiting else "return {value}"
        if returns == "None":
            rule = rule.removeprefix("return ")
        return rule.format(value=value, work=work)

    def _docstring(self, node: ast.ClassDef | Function, margin: int, note: str | None = None) -> str:
        text = given = ast.get_docstring(node) or ""
        for pattern, new in TEXTS.items():
            text, count = re.subn(pattern.replace(" ", r"\s+"), new, text)
            if count:
                self._found_texts.add(pattern)
        if note:
            before, section, after = re.split(r"(\n\n(?:Args|Raises):|\Z)", text, maxsplit=1)
            text = f"{before}\n\n{note}{section}{after}"
        if text != given:
            text = fill(text, 120 - margin)
        return textwrap.indent(f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""', "    ")

    def _decorators(self, node: ast.ClassDef | Function, tree: ast.Module, path: str) -> list[str]:
        kept = [ast.unparse(each) for each in node.decorator_list if ast.unparse(each) in KEPT_DECORATORS]
        self._note_names(" ".join(kept), tree, path)
        return [f"@{name}" for name in kept]

    def _note_names(self, code: str, tree: ast.Module, path: str) -> None:
        """Note where the names of some code come from."""
        for name in set(re.findall(r"[A-Za-z_]\w*", code)) - OWN_NAMES:
            for node in tree.body:
                if isinstance(node, ast.Import) and any(alias.name == name for alias in node.names):
                    self._imports[name] = f"import {name}"
                elif isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
                    self._imports[name] = f"from {node.module} import {name}"
                elif isinstance(node, ast.If):
                    for each in node.body:
                        if isinstance(each, ast.ImportFrom) and any(alias.name == name for alias in each.names):
                            self._typing_imports[name] = f"from {each.module} import {name}"
                elif name in defined_names(node):
                    module = "pilothouse." + path.removesuffix(".py").replace("/", ".")
                    self._imports[name] = f"from {module} import {name}"

    def _read(self, path: str) -> ast.Module:
        return ast.parse((CORE / path).read_text("utf-8"))


def defined_names(node: ast.stmt) -> list[str]:
    """The public name that a statement of a module defines."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def list_arguments(node: Function, converted: dict[str, str] | None = None) -> Iterator[str]:
    """The arguments of a call that hands on what a function was called with."""
    convert = converted or {}
    for each in (*node.args.posonlyargs, *node.args.args):
        if each.arg != "self":
            yield convert.get(each.arg, each.arg)
    if node.args.vararg is not None:
        yield f"*{node.args.vararg.arg}"
    for each in node.args.kwonlyargs:
        yield f"{each.arg}={convert.get(each.arg, each.arg)}"
    if node.args.kwarg is not None:
        yield f"**{node.args.kwarg.arg}"


def fill(text: str, width: int) -> str:
    """Wrap the paragraphs and items of a docstring anew; code stays as it is."""
    lines: list[str] = []
    code_margin = block_margin = -1  # of the line before the code; of the first line of the paragraph
    for line in text.splitlines():
        margin = len(line) - len(line.lstrip())
        if not line or (0 <= code_margin < margin):
            lines.append(line)
            block_margin = -1
            continue
        code_margin = -1
        if block_margin >= 0 and (margin > block_margin or not ITEM.match(line)):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
            block_margin = -1 if SECTION.fullmatch(line) else margin
        if line.endswith("::"):
            code_margin = margin
    filled = [line if len(line) <= width else fill_line(line, width - 3 * (line is lines[0])) for line in lines]
    return "\n".join(filled)


def fill_line(line: str, width: int) -> str:
    margin = " " * (len(line) - len(line.lstrip()))
    after = margin + "    " if ITEM.match(line) else margin
    return textwrap.fill(line, width, subsequent_indent=after, break_on_hyphens=False)


def format_code(text: str) -> str:
    """Sort the imports and format the code, as the rest of the repository is."""
    for command in (["check", "--quiet", "--fix", "--select", "I,F401,W,D", "--exit-zero"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(GENERATED), "-"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return text


def blocking_classes() -> str:
    """The text of `pilothouse/sync/generated.py`."""
    return BlockingModule().make()
