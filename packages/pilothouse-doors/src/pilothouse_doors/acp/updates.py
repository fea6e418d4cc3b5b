"""The updates of a session, as plain dictionaries: `UpdateWriter` is a table from events to `session/update`.

Pure, without the protocol's library. It also says how a tool call looks: title, kind, diff, terminal, plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import to_builtins

from pilothouse.client import EventReader, TextReader
from pilothouse.events import (
    PermissionSettled,
    QueryEvent,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from pilothouse.messages import (
    AssistantMessage,
    ContentBlockDelta,
    ContentBlockStart,
    Message,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ToolUseBlock,
    UserMessage,
    WireInputJsonDelta,
)
from pilothouse.permissions import Allow
from pilothouse.permissions.requests import escape_unprintable

Update = dict[str, Any]

TASK_TOOLS = frozenset({"TaskCreate", "TaskUpdate", "TaskList", "TaskGet"})
TODO_TOOL = "TodoWrite"
PLAN_TOOLS = TASK_TOOLS | {TODO_TOOL}
"""Tools that keep the list of what is to be done: the editor shows their effect as a plan, and not their calls."""
MAX_TITLE_CHARS = 200
_STATES = frozenset({"pending", "in_progress", "completed"})

_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
_ADDED = re.compile(r"\s*<(?:local-command|system-reminder|task-notification)")

# The kind of each tool, the input that its title names, and the words before it.
_TOOLS: Mapping[str, tuple[str, str, str]] = {
    "Read": ("read", "file_path", "Read "),
    "Edit": ("edit", "file_path", "Edit "),
    "MultiEdit": ("edit", "file_path", "Edit "),
    "NotebookEdit": ("edit", "notebook_path", "Edit "),
    "Write": ("edit", "file_path", "Write "),
    "Bash": ("execute", "command", ""),
    "Glob": ("search", "pattern", "Find "),
    "Grep": ("search", "pattern", "Search "),
    "WebFetch": ("fetch", "url", "Fetch "),
    "WebSearch": ("fetch", "query", "Search the web: "),
    "Task": ("think", "description", ""),
    "Agent": ("think", "description", ""),
    "ExitPlanMode": ("switch_mode", "", "Ready to work"),
    "EnterPlanMode": ("switch_mode", "", "Plan first"),
    "AskUserQuestion": ("other", "", "Question"),
}


class _Draft:
    """A tool call whose input the model is still writing: an incomplete JSON text."""

    def __init__(self, call_id: str, name: str, message_id: str | None) -> None:
        self.id = call_id
        self.name = name
        self.message_id = message_id
        self.text = ""
        self.is_titled = False


class UpdateWriter:
    """Turns the messages of a session into updates. Pure; each call and each result comes once.

    Titles name files relative to `cwd`. If `has_terminals`, the editor shows the output of commands as terminals.
    """

    def __init__(self, cwd: str = "", *, has_terminals: bool = False) -> None:
        self._cwd = cwd
        self._has_terminals = has_terminals
        self._events = EventReader()
        self._text = TextReader()
        self._calls: dict[str, ToolUseBlock] = {}
        self._shown: set[str] = set()
        self._finished: set[str] = set()
        self._drafts: dict[tuple[str | None, int], _Draft] = {}  # by the agent, and the number of the block
        self._announced: set[str] = set()  # calls that were shown while their input was written
        self._read_ids: set[str | None] = set()  # of the API messages of the history
        self._tasks: dict[str, Update] = {}

    def has_shown(self, call_id: str) -> bool:
        """Whether a call was written."""
        return call_id in self._shown

    def read(self, message: Message) -> Iterator[Update]:
        """Yield the updates of the next message of a child that runs."""
        message_id = None
        if isinstance(message, StreamEvent | AssistantMessage):
            message_id = message.api_message_id if isinstance(message, StreamEvent) else message.message_id
        is_known = message_id in self._read_ids  # but its calls may be new: each is written on its own
        if isinstance(message, StreamEvent):
            yield from self._write_draft(message)
        elif isinstance(message, ResultMessage):
            yield from self._drop_drafts()
        details = message.tool_use_result if isinstance(message, UserMessage) else None
        for event in self._events.read(message):
            if not (is_known and isinstance(event, TextDelta | ThinkingDelta)):
                yield from self.write(event, details)

    def _write_draft(self, message: StreamEvent) -> Iterator[Update]:
        """Yield what is known of a call while its input is written."""
        match message.event:
            case ContentBlockStart(content_block=ToolUseBlock() as call, index=index) if (
                call.id not in self._shown | self._announced and call.name not in PLAN_TOOLS
            ):
                self._announced.add(call.id)
                agent = message.parent_tool_use_id
                self._drafts[agent, index] = _Draft(call.id, call.name, message.api_message_id)
                made = {"sessionUpdate": "tool_call", "status": "pending", **describe_call(call, self._cwd)}
                yield self._add_meta(made, call, agent)
            case ContentBlockDelta(delta=WireInputJsonDelta(partial_json=text), index=index):
                draft = self._drafts.get((message.parent_tool_use_id, index))
                if draft is None or draft.is_titled:
                    return
                draft.text += text
                field = _TOOLS.get(draft.name, ("", "", ""))[1]
                if (value := _find_value(draft.text, field)) is not None:
                    draft.is_titled, draft.text = True, ""
                    known = describe_call(ToolUseBlock(id=draft.id, name=draft.name, input={field: value}), self._cwd)
                    shown = {name: known[name] for name in ("toolCallId", "title", "locations") if name in known}
                    yield {"sessionUpdate": "tool_call_update", **shown}
            case _ if message.abandoned_blocks is not None:
                yield from self._drop_drafts(message.abandoned_blocks.api_message_id)
            case _:
                return

    def _drop_drafts(self, message_id: str | None = None) -> Iterator[Update]:
        """Yield the end of calls that were never made: the model was stopped while it wrote them."""
        for key, draft in list(self._drafts.items()):
            if message_id is None or draft.message_id == message_id:
                del self._drafts[key]
                if draft.id not in self._shown:
                    yield {"sessionUpdate": "tool_call_update", "toolCallId": draft.id, "status": "failed"}

    def read_history(self, messages: Sequence[Message]) -> Iterator[Update]:
        """Yield the updates of a conversation on disk, prompts included. What a child repeats of it is left out."""
        known: set[str] = set()
        for message in messages:
            if isinstance(message, UserMessage) and not (message.is_meta or message.is_compact_summary):
                yield from _write_prompt(message)
            yield from self.read(message)
            if isinstance(message, AssistantMessage) and message.is_api_error_message and message.text:
                yield _make_chunk("agent_message_chunk", message.text)  # it was the error of the prompt
            if isinstance(message, AssistantMessage) and message.message_id:
                known.add(message.message_id)
        self._read_ids |= known

    def write(self, event: QueryEvent, details: Any = None) -> Iterator[Update]:
        """Yield what one event becomes; `details` are the data of a tool's result, for programs."""
        match event:
            case TextDelta(agent=None):
                if text := self._text.read_event(event):
                    yield _make_chunk("agent_message_chunk", text)
            case ThinkingDelta(agent=None, text=text):
                yield _make_chunk("agent_thought_chunk", text)
            case TextRetracted():
                self._text.read_event(event)
            case ToolCallStarted():
                yield from self.write_call(event.tool_use, event.agent)
            case ToolCallFinished():
                yield from self._write_result(event, details)
            case PermissionSettled(decision=Allow(), tool_use_id=str(call_id)):
                call = self._calls.get(call_id)
                if call is not None and call.name not in PLAN_TOOLS:
                    yield {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "in_progress"}
            case _:
                return

    def write_call(self, call: ToolUseBlock, agent: str | None = None) -> Iterator[Update]:
        """Yield the beginning of a call, unless it was written."""
        if call.id in self._shown:
            return
        self._shown.add(call.id)
        self._calls[call.id] = call
        if call.name in PLAN_TOOLS:
            yield from self._write_plan(call, None)
            return
        described = describe_call(call, self._cwd)
        if call.id in self._announced:
            if self._is_terminal(call):
                described.pop("content", None)  # the terminal is there
            yield {"sessionUpdate": "tool_call_update", **described}
        else:
            made = {"sessionUpdate": "tool_call", "status": "pending", **described}
            yield self._add_meta(made, call, agent)

    def _add_meta(self, made: Update, call: ToolUseBlock, agent: str | None) -> Update:
        meta: Update = {} if agent is None else {"pilothouse": {"agent": agent}}
        if self._is_terminal(call):
            made["content"] = [{"type": "terminal", "terminalId": call.id}]
            meta["terminal_info"] = {"terminal_id": call.id}
        return {**made, **({"_meta": meta} if meta else {})}

    def _is_terminal(self, call: ToolUseBlock) -> bool:
        return self._has_terminals and call.name == "Bash"

    def _write_result(self, event: ToolCallFinished, details: Any) -> Iterator[Update]:
        if event.id in self._finished:
            return
        self._finished.add(event.id)
        call = self._calls.pop(event.id, None) or event.tool_use or ToolUseBlock(id=event.id, name="")
        if call.name in PLAN_TOOLS:
            if not event.is_error:
                yield from self._write_plan(call, details)
            return
        status = "failed" if event.is_error else "completed"
        made: Update = {"sessionUpdate": "tool_call_update", "toolCallId": event.id, "status": status}
        made["rawOutput"] = to_builtins(event.result.content)
        text = event.result.text
        if self._is_terminal(call):
            code = 0 if not event.is_error else _read_exit_code(text)
            yield {
                **made,
                "_meta": {
                    "terminal_output": {"terminal_id": event.id, "data": text},
                    "terminal_exit": {"terminal_id": event.id, "exit_code": code, "signal": None},
                },
            }
            return
        if diffs := [] if event.is_error else _list_diffs(call, details):
            made["content"] = diffs
        elif content := list(_list_content(call, event)):
            made["content"] = content
        yield made

    def _write_plan(self, call: ToolUseBlock, details: Any) -> Iterator[Update]:
        """Yield the plan after a call (without details) or its result."""
        given, found = call.input, _as_mapping(details)
        if call.name == TODO_TOOL and details is None:
            self._tasks = {str(at): todo for at, todo in enumerate(_list_mappings(given.get("todos")))}
        elif call.name == "TaskCreate" and (task := _as_mapping(found.get("task"))):
            self._tasks[str(task.get("id"))] = {"status": "pending", **given, **task}
        elif call.name == "TaskUpdate" and found.get("success") is True:
            task_id = str(found.get("taskId"))
            self._tasks[task_id] = {**self._tasks.get(task_id, {}), **given}
            if given.get("status") == "deleted":
                del self._tasks[task_id]
        elif call.name == "TaskList" and isinstance(found.get("tasks"), list):
            self._tasks = {
                str(task.get("id")): {**self._tasks.get(str(task.get("id")), {}), **task}
                for task in _list_mappings(found["tasks"])
            }
        else:
            return
        yield {"sessionUpdate": "plan", "entries": [_make_entry(task) for task in self._tasks.values()]}


def describe_call(call: ToolUseBlock, cwd: str = "") -> Update:
    """Return how a call looks to the editor: its title, kind, files, input, and the change that it makes."""
    kind, field, words = _TOOLS.get(call.name, ("other", "", ""))
    value = str(call.input.get(field) or "") if field else ""
    if cwd and field.endswith("_path"):
        value = value.removeprefix(f"{cwd.rstrip('/')}/")
    title = f"{words}{value}" if field and value else words or call.name
    path = call.input.get("file_path") or call.input.get("notebook_path")
    made: Update = {"toolCallId": call.id, "title": _cut(title), "kind": kind, "rawInput": dict(call.input)}
    if isinstance(path, str):
        line = call.input.get("offset")
        made["locations"] = [{"path": path, **({"line": line} if isinstance(line, int) and line >= 0 else {})}]
    if diffs := _list_diffs(call, None):
        made["content"] = diffs
    elif call.name == "ExitPlanMode" and isinstance(plan := call.input.get("plan"), str):
        made["content"] = [_make_content(plan)]
    return made


def _find_value(text: str, name: str) -> str | None:
    """Return a text at the top of an incomplete JSON object; None: it is not there, or not whole yet."""
    found = re.match(rf'\s*\{{\s*"{name}"\s*:\s*("(?:[^"\\]|\\.)*")', text) if name else None
    if found is None:
        return None
    try:
        return str(msgspec.json.decode(found[1]))
    except msgspec.DecodeError:
        return None


def describe_asked_call(call: ToolUseBlock, cwd: str = "") -> Update:
    """Return how a call looks in the question whether it may run: a command is there in full.

    A title is one line and may be cut: the second line of a command would look like the comment in the first one.
    """
    made, command = describe_call(call, cwd), call.input.get("command")
    if isinstance(command, str) and (command != made["title"] or not command.isprintable()):
        shown = escape_unprintable(command, kept="\n\t")
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", command))])
        made["content"] = [*made.get("content", ()), _make_content(f"{fence}sh\n{shown}\n{fence}")]
    return made


def _list_diffs(call: ToolUseBlock, details: Any) -> list[Update]:
    """Return the changes that a call makes to files; `details` of its result know what a new file has replaced."""
    given, path = call.input, call.input.get("file_path")
    if not isinstance(path, str):
        return []
    if call.name == "Write" and isinstance(given.get("content"), str):
        before = _as_mapping(details).get("originalFile")
        return [_make_diff(path, before if isinstance(before, str) else None, given["content"])]
    edits = _list_mappings(given.get("edits")) if call.name == "MultiEdit" else [given] if call.name == "Edit" else []
    return [
        _make_diff(path, str(edit["old_string"]), str(edit["new_string"]))
        for edit in edits
        if "old_string" in edit and "new_string" in edit
    ]


def _make_diff(path: str, before: str | None, after: str) -> Update:
    return {"type": "diff", "path": path, "oldText": before, "newText": after}


def _list_content(call: ToolUseBlock, event: ToolCallFinished) -> Iterator[Update]:
    content = event.result.content
    for block in [] if isinstance(content, str) or content is None else content:
        match to_builtins(block):
            case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
                yield {"type": "content", "content": {"type": "image", "mimeType": kind, "data": data}}
            case _:
                continue
    if text := event.result.text:
        is_code = event.is_error or call.name in ("Bash", "Read")
        yield _make_content(_fence(text) if is_code else text)


def _fence(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _read_exit_code(text: str) -> int:
    words = text.split(maxsplit=3)
    return int(words[2]) if words[:2] == ["Exit", "code"] and words[2:3] and words[2].isdecimal() else 1


def _write_prompt(message: UserMessage) -> Iterator[Update]:
    content = message.message.content
    for block in [TextBlock(text=content)] if isinstance(content, str) else content:
        match to_builtins(block):
            case {"type": "text", "text": str(text)} if shown := _clean_prompt(text):
                yield _make_chunk("user_message_chunk", shown)
            case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
                image = {"type": "image", "mimeType": kind, "data": data}
                yield {"sessionUpdate": "user_message_chunk", "content": image}
            case {"type": "document", "title": str(uri), "source": {"type": "text", "data": str(data)}}:
                resource = {"type": "resource", "resource": {"uri": uri, "text": data}}
                yield {"sessionUpdate": "user_message_chunk", "content": resource}
            case _:
                continue


def _clean_prompt(text: str) -> str:
    """Return a prompt as it was typed; "" for what Claude Code has added."""
    if found := _COMMAND.search(text):
        return f"/{found[1].removeprefix('/')} {''.join(_ARGUMENTS.findall(text))}".rstrip()
    return "" if _ADDED.match(text) else text


def _make_chunk(kind: str, text: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def _make_content(text: str) -> Update:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _make_entry(task: Mapping[str, Any]) -> Update:
    status = task.get("status")
    text = task.get("content") or task.get("subject") or ""
    return {
        "content": str(task.get("activeForm") or text) if status == "in_progress" else str(text),
        "priority": "medium",
        "status": status if status in _STATES else "pending",
    }


def _cut(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list_mappings(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [dict(cast("Mapping[str, Any]", item)) for item in items if isinstance(item, Mapping)]


Block = dict[str, Any]


def read_prompt(blocks: Sequence[Mapping[str, Any]], refuse: Callable[[str], Exception]) -> list[Block]:
    """Return the content blocks of a prompt from those of the editor; `refuse` makes the error for a wrong one.

    The text comes last and in one block: Claude Code reads commands and `@path` there, and nowhere else. So an
    attached file or image, which somebody else may have written, mentions no other file.
    """
    words: list[str] = []
    made: list[Block] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                words.append(text)
            case {"type": "resource_link", "uri": str(uri), "name": str(name)}:
                words.append(_mention(uri, name))
            case {"type": "image", "data": str(data), "mimeType": str(kind)} if data:
                made.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                source = {"type": "text", "media_type": "text/plain", "data": text}
                made.append({"type": "document", "source": source, "title": uri})
                words.append(_mention(uri, uri.rpartition("/")[2]).removeprefix("@"))
            case {"type": "resource", "resource": {"blob": str(data), "mimeType": "application/pdf"}}:
                source = {"type": "base64", "media_type": "application/pdf", "data": data}
                made.append({"type": "document", "source": source})
            case _:
                raise refuse(f"a block of the prompt cannot be sent to the model: {block.get('type')}")
    text = "".join(words)
    made.extend([{"type": "text", "text": text}] if text.strip() else [])
    if not made:
        raise refuse("the prompt is empty")
    return made


def _mention(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return f"[{name}]({uri})"
    path = unquote(parts.path)
    return f'@"{path}"' if " " in path else f"@{path}"
