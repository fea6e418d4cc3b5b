"""Writes what is made from the code: parts of the pages beside it, the static types of the options, and the blocking
form of the classes (`blocking_classes.py`).

The parts of pages stand between `<!-- generated: name -->` and `<!-- end -->`, the programs of `docs/programs` between
`<!-- program: path -->` and `<!-- end -->`.

python docs/reference.py            # after a change of a message class, an option, an error, a hook event, a program
python docs/reference.py --check    # ends with 1 and says what is stale

Owns how the tables look. What stands in them comes from the code.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from blocking_classes import GENERATED, blocking_classes
from public_names import PUBLIC_MODULES

from pilothouse import errors
from pilothouse.hooks import HOOK_EVENTS, HookEventSpec, RefusalFormat
from pilothouse.messages import MESSAGE_TYPES, SYSTEM_SUBTYPES
from pilothouse.messages.base import Message
from pilothouse.options import TABLE, Option, settings
from pilothouse_otel import genai

HERE = Path(__file__).parent
OPTION_TYPES = HERE.parent / "packages" / "pilothouse" / "src" / "pilothouse" / "options" / "settings.pyi"
MAIN_FIELDS = 5
SHORT_VALUES = {
    "True or False": "bool",
    "True, False, or a list of names and prefixes such as 'AWS_*'": "bool or list of str",
    "True, False, or a name": "bool or str",
    "True, False, or a number of seconds greater than 0": "bool or seconds",
    "True, False, or the categories to log": "bool or str",
    "'auto', or a number of tokens of at least 100000": "'auto', or int, 100000 or more",
    "a Transport, or a callable that makes one": "Transport or function",
    "a callable": "function",
    "a callable that is not async": "function, not async",
    "a list of Middleware classes, or of functions that make one": "list of classes or functions",
    "a list of functions, or of what @tool made of them": "list of functions",
    "a list of paths": "list of paths",
    "a list of paths or Plugins": "list of paths or Plugins",
    "a list of skill names, or 'all'": "list of str, or 'all'",
    "a list of text": "list of str",
    "a list of tool names, or 'default'": "list of str, or 'default'",
    "a mapping of event names to hooks": "mapping",
    "a mapping of names to agents": "mapping",
    "a mapping of names to servers, or a path or JSON text": "mapping, path, or JSON text",
    "a mapping of tool names to tool names": "mapping",
    "a mapping of variable names to text (None removes one)": "mapping",
    "a mapping with text keys": "mapping",
    "a mapping, or a path or JSON text": "mapping, path, or JSON text",
    "a model, or a list of models in the order to try": "str or list of str",
    "a number greater than 0": "number",
    "a number of seconds greater than 0": "seconds",
    "a path": "path",
    "a whole number of at least 0": "int, 0 or more",
    "a whole number of at least 1": "int, 1 or more",
    "a whole number of tokens of at least 1": "int, 1 or more",
    "an Instrumentation, or a list of them": "Instrumentation or list",
    "non-empty text": "str",
    "text without NUL or lone surrogates": "str",
    "the name of a user, or a number": "str or int",
}
CONVERSATION = ("system", "assistant", "user", "result", "stream_event")
BASE_FIELDS = frozenset(Message.__struct_fields__)
BASE_VIEWS = frozenset({"type", "raw"})

_OPENING = re.compile(r"^(Wire type|Subtype) `[a-z_]+`[:;.,]? ?")
_IDS = re.compile(r" ?\([A-Z]\d+(, [A-Z]\d+)*\)")
_CARRIER = re.compile(r"`(--[a-zA-Z-]+|[A-Z_]{5,})`")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PROGRAM = re.compile(r"(<!-- program: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def code(text: str) -> str:
    return f"`{text}`"


def first_sentence(cls: type) -> str:
    """What the docstring says first, without the wire type and the requirement ids."""
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    text = _IDS.sub("", _OPENING.sub("", text)).strip()
    return text[:1].upper() + text[1:]


def fields(cls: Any, hidden: frozenset[str]) -> str:
    """The views first, then the fields; a long list is cut."""
    parents: tuple[type, ...] = cls.__mro__
    views = [n for parent in parents for n, v in vars(parent).items() if isinstance(v, property)]
    own: tuple[str, ...] = cls.__struct_fields__
    names = [name for name in dict.fromkeys([*views, *own]) if name not in hidden | BASE_VIEWS]
    left = len(names) - max(MAIN_FIELDS, len(set(views) - BASE_VIEWS))
    shown = names if left <= 1 else names[:-left]
    return ", ".join(map(code, shown)) + (" …" if left > 1 else "")


def struct_rows(classes: Iterable[tuple[str, Any]], hidden: frozenset[str]) -> str:
    rows = [(f"{code(cls.__name__)} {code(wire)}", first_sentence(cls), fields(cls, hidden)) for wire, cls in classes]
    return table(("class and wire type", "what it is", "main fields"), rows)


def conversation() -> str:
    return struct_rows([(kind, MESSAGE_TYPES[kind]) for kind in CONVERSATION], BASE_FIELDS)


def other_messages() -> str:
    """The classes of messages beside those of the conversation."""
    rare = [cls for kind, cls in MESSAGE_TYPES.items() if kind not in CONVERSATION]
    names = sorted(cls.__name__ for cls in (*rare, *SYSTEM_SUBTYPES.values()))
    return textwrap.fill(listed(names), 120, break_on_hyphens=False) + "\n"


def default(option: Option) -> str:
    if option.name == "max_line_bytes":
        return f"{option.default // 2**20} MiB"
    return "" if option.default is None else code(repr(option.default))


def options() -> str:
    parts: list[str] = []
    for group, rows in groupby(TABLE.values(), key=lambda option: option.group):
        parts.append(f"\n### {group[:1].upper()}{group[1:]}\n\n")
        parts.append(table(("option", "value (default)", "effect (in Claude Code)"), map(option_row, rows)))
    return "".join(parts) + "\n"


def option_row(option: Option) -> tuple[str, ...]:
    same = "--" + option.name.replace("_", "-")
    carriers = listed(name for name in _CARRIER.findall(option.destination) if name != same)
    return code(option.name), value(option) + in_brackets(default(option)), option.doc + in_brackets(carriers)


def value(option: Option) -> str:
    """What the option takes, in the words of a Python program."""
    expected = option.value_type.expected
    return SHORT_VALUES.get(expected, expected.removeprefix("one of "))


def in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def hook_events() -> str:
    head = ("class", "when", "matched by", "refused?")
    return table(head, map(event_row, HOOK_EVENTS.values()))


def event_row(rule: HookEventSpec) -> tuple[str, ...]:
    cls: Any = rule.event_class
    what = first_sentence(cls)
    refusal = "" if rule.refusal_format is RefusalFormat.NONE else "gate" if rule.is_gate else "yes"
    matched = code(rule.match_field) if rule.match_field else ""
    return code(cls.__name__), what, matched, refusal


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def error_tree() -> str:
    """The tree of the docstring as a nested list."""
    rows = re.findall(r"^ {4}(\W*)(\w+)((?: \(\w+\))?)(?: {2,}(.*))?$", errors.__doc__ or "", re.MULTILINE)
    lines = [
        f"{' ' * len(branches)}- {code(name)}{base}" + (f": {what}" if what else "")
        for branches, name, base, what in rows
    ]
    return "\n" + "\n".join(lines) + "\n\n"


def public_modules() -> str:
    """The modules that have public names."""
    return textwrap.fill(listed(PUBLIC_MODULES), 120, break_on_hyphens=False) + "\n"


def genai_names() -> str:
    found = [(name, value) for name, value in vars(genai).items() if name.isupper() and isinstance(value, str)]
    names = [value for name, value in found if name != "SCHEMA_URL" and not value.startswith("pilothouse.")]
    return textwrap.fill(listed(names), 120, break_on_hyphens=False) + "\n"


def programs() -> str:
    """Each program that is no step of the tutorial, with the first sentence of its docstring."""
    folder = HERE / "programs"
    paths = [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "tutorial"]
    names = [path.relative_to(folder).as_posix() for path in paths]
    first_lines = [path.read_text("utf-8").partition("\n")[0].strip('"') for path in paths]
    sentences = [re.split(r"(?<=\.) ", line)[0] for line in first_lines]
    lines = [f"- [`{name}`](programs/{name}): {sentence}\n" for name, sentence in zip(names, sentences, strict=True)]
    return "\n" + "".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "conversation": conversation,
    "error_tree": error_tree,
    "genai_names": genai_names,
    "hook_events": hook_events,
    "options": options,
    "other_messages": other_messages,
    "programs": programs,
    "public_modules": public_modules,
}


OPTION_TYPES_HEAD = '''"""Static types of the options, written by `python docs/reference.py` from the table."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict

from pilothouse.callbacks import CallbackWrapper
from pilothouse.hooks import Hooks
from pilothouse.instrumentation import Instrumentation
from pilothouse.messages.core import PermissionMode
from pilothouse.options.cli_settings import CliSettings
from pilothouse.options.value_structs import (
    AdaptiveThinking,
    AgentDefinition,
    CustomSystemPrompt,
    DisabledThinking,
    Effort,
    EnabledThinking,
    HttpServer,
    Plugin,
    RetryPolicy,
    Sandbox,
    SseServer,
    StdioServer,
    SystemPromptFile,
    SystemPromptPreset,
    ToolConfig,
)
from pilothouse.permissions import (
    Asks,
    CanUseTool,
    ConfirmCallback,
    DialogCallback,
    ElicitationCallback,
    PlanCallback,
    QuestionCallback,
)

McpServer = StdioServer | HttpServer | SseServer
Provider = Literal["anthropic", "bedrock", "vertex", "foundry"]
SettingSource = Literal["user", "project", "local"]
StrPath = str | os.PathLike[str]
SystemPrompt = str | SystemPromptPreset | CustomSystemPrompt | SystemPromptFile
SystemPromptChoice = SystemPrompt | Sequence[str] | Mapping[str, Any]
Thinking = AdaptiveThinking | EnabledThinking | DisabledThinking
ThinkingChoice = Thinking | Literal["adaptive", "disabled", "enabled"] | Mapping[str, Any]
'''


def option_types() -> str:
    """`settings.pyi`: each option as a keyword argument, an attribute and a method, each with its documentation."""
    setter = "def {0.name}(self, value: {0.accepted_type}) -> Self:"
    parts = [OPTION_TYPES_HEAD]
    for name, base, member, indent in (
        ("Settings", "(TypedDict, total=False)", "{0.name}: {0.accepted_type}", 4),
        ("OptionAttributes", "", "{0.name}: {0.stored_type}", 4),
        ("OptionSetters", "", setter, 8),
    ):
        parts.append(f"class {name}{base}:\n" + docstring(" ".join((getattr(settings, name).__doc__ or "").split()), 4))
        parts += [f"    {member.format(option)}\n{docstring(option.doc, indent)}" for option in TABLE.values()]
    return "\n".join(parts)


def docstring(text: str, indent: int) -> str:
    margin = " " * indent
    return textwrap.fill(f'"""{text}"""', 120, initial_indent=margin, subsequent_indent=margin) + "\n"


def fresh(page: str) -> str:
    """The page with its generated parts as they should be."""
    page = _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", page)
    return _PROGRAM.sub(lambda match: f"{match[1]}{program(match[2])}{match[3]}", page)


def program(path: str) -> str:
    return f"```python no-run\n{(HERE / 'programs' / path).read_text('utf-8')}```\n"


def main(check: bool) -> int:
    stale = 0
    modules = {OPTION_TYPES: option_types, GENERATED: blocking_classes}
    for path in (*sorted(HERE.rglob("*.md")), *modules):
        page = path.read_text("utf-8") if path.exists() else ""
        new = modules[path]() if path in modules else fresh(page)
        if new != page:
            stale += 1
            print(f"{path.name}: {'stale; run python docs/reference.py' if check else 'written'}")
            if not check:
                path.write_text(new, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
