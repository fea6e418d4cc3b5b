"""Write the types of the CLI's own tools, from the declarations in the official package: `tools/builtin_generated.py`.

`python -m tests.cli_versions bump` calls this. It reads the part of TypeScript that `sdk-tools.d.ts` uses: interfaces,
aliases, objects, arrays, tuples, unions, literals and `Record`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from keyword import iskeyword
from pathlib import Path

GENERATED = (
    Path(__file__).parents[1] / "packages" / "pilothouse" / "src" / "pilothouse" / "tools" / "builtin_generated.py"
)
HEAD = '''"""The inputs and outputs of the tools of Claude Code {version}, with the keys of the wire.

Generated from the official declarations by `python -m tests.cli_versions bump`; do not edit.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from pilothouse.tools.calls import Call

'''
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\w+|[{}()\[\]<>|&:;,?=]', re.DOTALL)
_PLAIN = {"string": "str", "number": "float", "boolean": "bool", "unknown": "Any", "any": "Any", "null": "None"}
_LITERALS = {"true": "True", "false": "False"}
_OPEN, _CLOSE = ("{", "[", "(", "<"), ("}", "]", ")", ">")
_ENDS = ("|", ";", ",", *_CLOSE)
_DISCRIMINATORS = ("type", "status", "action", "kind")


class Declarations:
    """Turns declarations into Python; `lines` has the classes, each after those that it needs."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0
        self._names: dict[str, str] = {}  # of an object, by its fields
        self.lines: list[str] = []
        self.declared: list[str] = []

    def read(self) -> None:
        while self._at < len(self._tokens):
            self._take("export")
            kind, name = self._next(), self._next()
            if kind == "type":
                self._take("=")
            expression = self._type(name if kind == "interface" or self._is_union() else f"{name}Item")
            if name != expression:
                self.lines.append(f"{name}: TypeAlias = {_quote(expression)}")
            self.declared.append(name)
            self._accept(";")

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _accept(self, token: str) -> bool:
        is_there = self._peek() == token
        self._at += is_there
        return is_there

    def _take(self, token: str) -> None:
        assert self._accept(token), f"expected {token}, found {self._tokens[self._at : self._at + 9]}"

    def _type(self, name: str) -> str:
        self._accept("|")
        if not self._is_union():
            return self._postfix(name)
        parts: list[str] = []
        while not parts or self._accept("|"):
            parts.append(self._postfix(f"{name}{_variant(self._tokens, self._at, len(parts) + 1)}"))
        return _join(parts)

    def _is_union(self) -> bool:
        depth = 0
        for token in self._tokens[self._at :]:
            if depth == 0 and token in _ENDS:
                return token == "|"
            depth += (token in _OPEN) - (token in _CLOSE)
        return False

    def _postfix(self, name: str) -> str:
        found = self._primary(name)
        while self._peek() == "[" and self._peek(1) == "]":
            self._at += 2
            found = f"list[{found}]"
        return found

    def _primary(self, name: str) -> str:
        token = self._next()
        if token == "(":
            found = self._type(name)
            self._take(")")
            return found
        if token == "[":
            parts: list[str] = []
            while not self._accept("]"):
                parts.append(self._type(name))
                self._accept(",")
            return f"list[{_join(parts)}]" if parts else "list[Any]"
        if token == "{":
            return self._object(name)
        if token.startswith('"') or token.isdigit():
            return f"Literal[{token}]"
        if token in _LITERALS:
            return f"Literal[{_LITERALS[token]}]"
        if token == "Record":
            self._take("<")
            self._type(name)
            self._take(",")
            found = f"dict[str, {self._type(name)}]"
            self._take(">")
            return found
        return _PLAIN.get(token, token)

    def _object(self, name: str) -> str:
        fields: dict[str, str] = {}
        rest = ""
        while not self._accept("}"):
            if self._accept("["):
                while not self._accept("]"):
                    self._next()
                self._take(":")
                rest = self._type(name)
            else:
                key = self._next().strip('"')
                optional = self._accept("?")
                self._take(":")
                value = self._type(name + _camel(key))
                fields[key] = f"NotRequired[{value}]" if optional else value
            self._accept(";")
        if rest and not fields:
            return f"dict[str, {rest}]"
        return self._declare(name, fields)

    def _declare(self, name: str, fields: dict[str, str]) -> str:
        shape = repr(sorted(fields.items()))
        is_top = name.endswith(("Input", "Output"))
        if not is_top and shape in self._names:
            return self._names[shape]
        self._names.setdefault(shape, name)
        if all(key.isidentifier() and not iskeyword(key) for key in fields):
            self.lines.append(
                f"class {name}(TypedDict):\n" + ("".join(f"    {k}: {v}\n" for k, v in fields.items()) or "    pass\n")
            )
        else:
            members = "".join(f'    "{key}": {value},\n' for key, value in fields.items())
            self.lines.append(f'{name} = TypedDict("{name}", {{\n{members}}})')
        return name


def _variant(tokens: list[str], at: int, number: int) -> str:
    """A name for a member of a union: that of its `type` or `status`, if it has one."""
    depth = 0
    for index in range(at, len(tokens) - 2):
        depth += (tokens[index] in _OPEN) - (tokens[index] in _CLOSE)
        if depth == 1 and tokens[index] in _DISCRIMINATORS and tokens[index + 1] == ":" and tokens[index + 2][0] == '"':
            return _camel(tokens[index + 2].strip('"'))
        if depth == 0:
            break
    return str(number)


def _camel(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", text))


def _join(parts: list[str]) -> str:
    unique = list(dict.fromkeys(parts))
    literals = [part[8:-1] for part in unique if part.startswith("Literal[")]
    others = [part for part in unique if not part.startswith("Literal[")]
    joined = [f"Literal[{', '.join(literals)}]"] if literals else []
    return " | ".join(joined + others)


def _quote(expression: str) -> str:
    return expression if "{" not in expression else repr(expression)


def find_tool_name(stem: str, names: list[str]) -> str | None:
    """Return the name of the tool that `{stem}Input` belongs to."""
    snake = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", stem).lower()
    return next((name for name in (stem, f"{stem}Tool", stem.removeprefix("File"), snake) if name in names), None)


def make_module(version: str, tools: str, sdk: str) -> str:
    """Make the text of the module.

    Args:
        version: of the CLI.
        tools: `sdk-tools.d.ts`.
        sdk: `sdk.d.ts`, with the names of the tools.
    """
    listed = re.search(r"BUILTIN_TOOL_NAMES: readonly \[(.*?)\]", sdk)
    assert listed is not None
    names: list[str] = re.findall(r"'(\w+)'", listed[1])
    declarations = Declarations(tools[tools.index("export type AgentOutput") :])
    declarations.read()
    calls: dict[str, str] = {}
    for declared in declarations.declared:
        stem = declared.removesuffix("Input")
        if declared.endswith("Input") and (name := find_tool_name(stem, names)) is not None:
            output = f"{stem}Output" if f"{stem}Output" in declarations.declared else "Any"
            calls[name] = f'Call[Literal["{name}"], {declared}, {output}]'
    union = "\n    | ".join(calls[name] for name in sorted(calls))
    text = HEAD.format(version=version) + "\n\n".join(declarations.lines)
    text += f"\n\nBuiltinCall: TypeAlias = (\n    {union}\n)\n"
    text += '"""A call of one of the tools whose input is declared; type checkers narrow it by `name`."""\n\n'
    text += f"TYPED_TOOLS = frozenset({sorted(calls)!r})\n\n"
    text += f"BUILTIN_TOOL_NAMES = frozenset({sorted(names)!r})\n"
    text += '"""Every tool of this version, also those whose input is not declared."""\n\n'
    text += f"LEGACY_TOOL_NAME_ALIASES: Mapping[str, str] = MappingProxyType({find_aliases(sdk)!r})\n"
    return text + '"""Former names that rules, hook matchers and lists of tools still accept, and the names today."""\n'


def find_aliases(sdk: str) -> dict[str, str]:
    """Return the former names of tools and their names today, from the program of the SDK."""
    exported = re.search(r"(\w+) as LEGACY_TOOL_NAME_ALIASES", sdk)
    found = exported and re.search(rf"\b{re.escape(exported[1])}=\{{([^}}]*)\}}", sdk)
    return dict(re.findall(r'(\w+):"(\w+)"', found[1])) if found else {}


def write_module(version: str, tools: str, sdk: str, path: Path) -> None:
    """Write the module, in the format of the project."""
    path.write_text(make_module(version, tools, sdk), "utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=True)
