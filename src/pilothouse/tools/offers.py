"""What a server offers beside tools: resources that can be read, prompts that can be filled in.

Owns how functions and fixed contents become resources and prompts, and how one of them is answered. Knows no wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools.calling import call, is_async
from pilothouse.tools.content import as_block, json_text, plain, resource_contents
from pilothouse.tools.schemas import FieldsInput
from pilothouse.tools.signatures import caller_names, name_of, read_signature

F = TypeVar("F", bound=Callable[..., Any])

_PLACEHOLDER = re.compile(r"\{(\+?)([A-Za-z_]\w*)(\*?)\}")
_ROLES = ("user", "assistant")


class Resource:
    """Something that can be read at an address; made by `resource`.

    Attributes:
        uri: its address. With `{placeholders}`, it is a template, and the function gets their values by name.
        name: what it is called.
        description: what it holds.
        mime_type: such as "text/plain"; by default told from what is read.
        is_template: whether the address has placeholders.
    """

    def __init__(
        self,
        uri: str,
        read: Callable[..., Any] | None = None,
        *,
        content: Any = None,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", uri):
            raise ToolDefinitionError(f"the address of a resource begins with its scheme, as in config://app: {uri!r}")
        self.uri = uri
        self.mime_type = mime_type
        self._content = content
        self._read = read
        self._pattern, names = _pattern(uri)
        self.is_template = bool(names)
        self._takes: FieldsInput | None = None
        self.description = description or ""
        self.name = name or (uri if read is None else name_of(read))
        if read is None:
            if names:
                raise ToolDefinitionError(f"{uri}: a fixed content has no placeholders; write a function")
            return
        signature = read_signature(read, namespace)
        if signature.names != names and not (signature.takes_more and signature.names <= names):
            raise ToolDefinitionError(
                f"{uri}: its function takes {sorted(signature.names)}, and its address has {sorted(names)}"
            )
        self._takes = FieldsInput(signature.parameters, takes_more=signature.takes_more, strict=False)
        self.description = description if description is not None else signature.description
        self._is_async = is_async(read)

    def __repr__(self) -> str:
        return f"Resource({self.uri!r})"

    def definition(self) -> dict[str, Any]:
        """The entry in `resources/list` or `resources/templates/list`."""
        made = {"uriTemplate" if self.is_template else "uri": self.uri, "name": self.name}
        extra = {"description": self.description, "mimeType": self.mime_type}
        return made | {key: value for key, value in extra.items() if value}

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the placeholders if `uri` is an address of this resource."""
        found = self._pattern.fullmatch(uri)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

    async def read(self, uri: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        """What stands at `uri`, as the contents of MCP. Raises what the function raises."""
        value = self._content
        if self._read is not None and self._takes is not None:
            named = self._takes.read(values)
            value = await call(self._read, (), named, inline=self._is_async)
        return [resource_contents(uri, value, self.mime_type)]


class Prompt:
    """A prompt with blanks; made by `prompt`.

    Attributes:
        name: how it is asked for.
        description: what it is for.
    """

    def __init__(
        self,
        fill: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        signature = read_signature(fill, namespace)
        self.name = name or signature.name
        self.description = signature.description if description is None else description
        # All blanks are filled in with text; what the function takes may be more than that.
        self._takes = FieldsInput(signature.parameters, takes_more=signature.takes_more, strict=False)
        self._fill = fill
        self._is_async = is_async(fill)

    def __repr__(self) -> str:
        return f"Prompt({self.name!r})"

    def definition(self) -> dict[str, Any]:
        """The entry in `prompts/list`."""
        schema = self._takes.schema
        required = set(schema.get("required", ()))
        arguments = [
            {"name": name, "required": name in required}
            | ({"description": each["description"]} if "description" in each else {})
            for name, each in schema["properties"].items()
        ]
        return {"name": self.name, "description": self.description, "arguments": arguments}

    async def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt with its blanks filled in, as the result of `prompts/get`.

        Raises:
            ToolInputError: a value is missing or does not fit.
        """
        named = self._takes.read(values)
        answer = await call(self._fill, (), named, inline=self._is_async)
        messages = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
        return {"description": self.description, "messages": [_message(each) for each in messages]}


def resource(
    uri: str,
    *,
    content: Any = None,
    name: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
) -> Any:
    """A resource of a server: a fixed content, or, as a decorator, a function that is called for each reading. (R25)

    Args:
        uri: its address, such as `config://app`, or `users://{user_id}`, whose placeholders are the parameters of the
            function; `{path*}` also takes slashes.
        content: text, bytes or JSON; None to decorate a function that returns one of these.
        name: what it is called; by default as the function.
        description: by default from the docstring.
        mime_type: by default told from what is read.

    Returns:
        The `Resource`, or a decorator that makes it.

    Raises:
        ToolDefinitionError: the function does not fit the address.
    """
    names = caller_names()

    def make(read: Callable[..., Any] | None) -> Resource:
        return Resource(
            uri, read, content=content, name=name, description=description, mime_type=mime_type, namespace=names
        )

    return make if content is None else make(None)


def prompt(name: str | None = None, *, description: str | None = None) -> Callable[[Callable[..., Any]], Prompt]:
    """A decorator for a prompt of a server. (R26)

    The function returns a text (what the user says), or a list of texts, blocks or `{"role": …, "content": …}`. The
    CLI (2.1.330) does not ask servers in this process for prompts; other clients do.

    Args:
        name: how it is asked for; by default the name of the function.
        description: by default from the docstring.

    Raises:
        ToolDefinitionError: the function cannot be used.
    """
    names = caller_names()
    return lambda fill: Prompt(fill, name=name, description=description, namespace=names)


def _message(value: Any) -> dict[str, Any]:
    if hasattr(value, "model_dump") and getattr(value, "role", None) in _ROLES:
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("role") in _ROLES:
        message = cast("Mapping[str, Any]", value)
        return {"role": message["role"], "content": _content(message.get("content", ""))}
    return {"role": "user", "content": _content(value)}


def _content(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    return as_block(value) or {"type": "text", "text": json_text(plain(value))}


def _pattern(uri: str) -> tuple[re.Pattern[str], frozenset[str]]:
    parts: list[str] = []
    names: list[str] = []
    end = 0
    for found in _PLACEHOLDER.finditer(uri):
        rest, name, many = found.groups()
        parts += [re.escape(uri[end : found.start()]), f"(?P<{name}>{'.+' if rest or many else '[^/]+'})"]
        names.append(name)
        end = found.end()
    if len(set(names)) != len(names):
        raise ToolDefinitionError(f"{uri}: a placeholder stands in it twice")
    return re.compile("".join(parts) + re.escape(uri[end:])), frozenset(names)
