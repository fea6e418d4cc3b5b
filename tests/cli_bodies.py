"""The fields of control bodies and hooks: what pilothouse has, for the comparison with a release of the CLI.

Four kinds of bodies: requests that pilothouse sends, and the answers that it reads; requests that it answers, and its
answers. Each type of the official SDK is compared with the class, or the call in the source, that has its fields. A
field that is left out on purpose stands in `LEFT_OUT`, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pilothouse.client import controls
from pilothouse.client.handlers import TOOL_INITIALIZE_KEYS
from pilothouse.client.session_settings import CHANGEABLE_OPTIONS
from pilothouse.errors import UsageError
from pilothouse.hooks import HOOK_EVENTS, HookEvent, HookOutput, McpServerOrigin, matchers
from pilothouse.hooks.events import is_gate
from pilothouse.hooks.outputs import encode_output
from pilothouse.options import TABLE
from pilothouse.options.table import InitializeField, JsonFlag, TextFlag
from pilothouse.permissions import dispatcher, requests
from pilothouse.tools import mcp_dispatcher

CORE = Path(controls.__file__).parents[1]

READ: Mapping[str, type[msgspec.Struct]] = {
    "AccountInfo": controls.AccountInfo,
    "AgentInfo": controls.AgentInfo,
    "McpServerProvenance": McpServerOrigin,
    "McpServerStatus": controls.McpServerStatus,
    "McpSetServersResult": controls.McpServersChange,
    "ModelInfo": controls.ModelInfo,
    "RewindFilesResult": controls.RewindResult,
    "SDKControlGetContextUsageResponse": controls.ContextUsage,
    "SDKControlGetHooksListingResponse": controls.RegisteredHooks,
    "SDKControlGetTaskOutputResponse": controls.TaskOutput,
    "SDKControlGetUsageResponse": controls.SessionUsage,
    "SDKControlInterruptResponse": controls.InterruptResult,
    "SDKControlMcpReadResourceResponse": controls.McpResourceContents,
    "SDKControlPermissionRulesState": controls.PermissionRules,
    "SDKControlReadFileResponse": controls.FileContents,
    "SDKControlReloadPluginsResponse": controls.PluginReloadResult,
    "SlashCommand": controls.CommandInfo,
}
"""The class of each answer that pilothouse reads."""

ANSWERED: Mapping[str, ModuleType] = {
    "SDKControlElicitationRequest": dispatcher,
    "SDKControlMcpMessageRequest": mcp_dispatcher,
    "SDKControlPermissionRequest": requests,
    "SDKControlRequestUserDialogRequest": dispatcher,
    "SDKHookCallbackRequest": matchers,
}
"""The module that reads each request that pilothouse answers."""
REQUEST_CLASSES: Mapping[str, type[msgspec.Struct]] = {"SDKControlPermissionRequest": requests.PermissionRequest}
"""Those of them that a class decodes; the others are read field by field."""

_FLAG = "a flag carries it, which works on every CLI and without a handshake"
_HOST = "for hosts of many clients; a program has the session"
LEFT_OUT: Mapping[str, str] = {
    "PermissionResult.decisionClassification": "for the telemetry of terminals",
    "PermissionResult.toolUseID": "the response names the request",
    "SDKControlGetHooksListingResponse.bareMode": "a bare CLI calls no hooks; its options say so",
    "SDKControlGetUsageResponse.behaviors": "skipped by request: it reads every transcript of the machine",
    "SDKControlInitializeRequest.appendSystemPrompt": _FLAG,
    "SDKControlInitializeRequest.excludeDynamicSections": _FLAG,
    "SDKControlInitializeRequest.forwardSubagentText": _FLAG,
    "SDKControlInitializeRequest.mcpServers": _FLAG,
    "SDKControlInitializeRequest.plugins": _FLAG,
    "SDKControlInitializeRequest.promptSuggestions": _FLAG,
    "SDKControlInitializeRequest.sdkMcpServerManifestsOrigin": _HOST,
    "SDKControlInitializeRequest.systemPromptSnapshot": _FLAG,
    "SDKControlInitializeRequest.title": _FLAG,
    "SDKControlMcpStatusRequest.liveReply": _HOST,
    "SDKControlPermissionRequest.classifier_approvable": "for terminals that show the verdict of a classifier",
    "SDKControlReloadPluginsResponse.cache_impact": _HOST,
    "SDKControlReloadPluginsResponse.held": _HOST,
    "SDKControlReloadPluginsRequest.add_plugins": "`plugins` has them, for every child of the session",
    "SDKControlReloadPluginsRequest.hold_on_cache_impact": _HOST,
    "SDKControlReloadPluginsRequest.refuse_if_busy": _HOST,
    "SDKControlRenameSessionRequest.session_id": _HOST,
    "SDKControlRenameSessionRequest.source": _HOST,
    "SDKHookCallbackRequest.tool_use_id": "the event has it",
}
"""Fields of a release that pilothouse leaves out, and why. What it receives stays in `raw`."""

UNDECLARED = frozenset(
    {
        "SDKControlGetContextUsageResponse.autocompactSource",
        "SDKControlGetUsageRequest.detached",
        "SDKControlInitializeRequest.managedSettings",
    }
)
"""Fields that no type of the SDK declares, and the program has."""


_TAGS = frozenset({"hookEventName", "hook_event_name", "subtype"})


def find_members(types: str, name: str) -> list[str]:
    """Return the fields of a type, without those of the objects inside; [] if there is no such type."""
    return re.findall(r"^ {4}(\w+)\??:", _find_text(types, name), re.MULTILINE)


def _find_inner(types: str, name: str) -> set[str]:
    return set(re.findall(r"^ {8,}(\w+)\??:", _find_text(types, name), re.MULTILINE))


def _find_text(types: str, name: str) -> str:
    found = re.search(
        rf"^(?:export )?declare (?:type|interface) {name}\b[^\n]*\n(.*?)(?=^[^\s}}/]|\Z)",
        types,
        re.DOTALL | re.MULTILINE,
    )
    return found[1] if found else ""


def _list_types(types: str, pattern: str) -> list[tuple[str, str]]:
    """Return the name of each type that matches, and the part of it in the pattern's group."""
    found = re.finditer(rf"^(?:export )?declare type ({pattern}) = ", types, re.MULTILINE)
    return [(match[1], match[2]) for match in found]


def _list_requests(types: str) -> Iterator[tuple[str, str]]:
    """Yield the subtype of each control request, and the name of its type."""
    for name, _ in _list_types(types, r"SDK(\w*)Request"):
        subtype = re.search(r"^ {4}subtype: '(\w+)'", _find_text(types, name), re.MULTILINE)
        if subtype:
            yield subtype[1], name


def find_fields(types: str, names: Iterable[str]) -> list[str]:
    """Return the fields of these types as "Type.field", without those that are left out."""
    found = [f"{name}.{key}" for name in names for key in dict.fromkeys(find_members(types, name))]
    return [name for name in found if name not in LEFT_OUT and name.partition(".")[2] not in _TAGS]


# Requests that pilothouse sends

_SENDERS = frozenset({"_control", "_request", "control", "notify", "register_request", "request", "send"})


@cache
def find_sent_fields() -> Mapping[str, frozenset[str]]:
    """Return the fields of the body of each control request that the source sends, by subtype."""
    sent: dict[str, set[str]] = {}
    for path in CORE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for subtype, keys in _find_sent_in(function, constants):
                    sent.setdefault(subtype, set()).update(keys)
    for subtype, key in CHANGEABLE_OPTIONS.values():
        sent.setdefault(subtype, set()).add(key)
    sent.setdefault("initialize", set()).update(_list_initialize_keys())
    return {subtype: frozenset(keys) for subtype, keys in sent.items()}


def _find_sent_in(
    function: ast.FunctionDef | ast.AsyncFunctionDef, constants: Mapping[str, ast.expr]
) -> Iterator[tuple[str, set[str]]]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    keys = {key for node in ast.walk(function) if isinstance(node, ast.Dict) for key in _get_keys(node)}
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "_call_tool":
            yield controls.MCP_CALL, keys
        subtype = call.args[0] if call.args else None
        if name not in _SENDERS or not isinstance(subtype, ast.Constant) or not isinstance(subtype.value, str):
            continue
        names = {word.arg for word in call.keywords if word.arg and word.arg != "timeout"}
        bodies = [*call.args[1:2], *(word.value for word in call.keywords if word.arg is None)]
        for body in bodies:
            value = constants.get(body.id, body) if isinstance(body, ast.Name) else body
            named = {key for node in ast.walk(value) if isinstance(node, ast.Dict) for key in _get_keys(node)}
            names |= named or keys
        yield subtype.value, names


def _get_keys(node: ast.Dict) -> Iterator[str]:
    return (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _list_initialize_keys() -> Iterator[str]:
    for option in TABLE.values():
        targets: Any = getattr(option.target, "targets", None) or option.target
        for target in targets if isinstance(targets, tuple) else (targets,):
            if isinstance(target, InitializeField | JsonFlag | TextFlag) and target.key:
                yield target.key
    yield from ("hooks", *TOOL_INITIALIZE_KEYS)


def find_sent(types: str) -> list[str]:
    """Return the fields of the requests of a release that pilothouse sends, too."""
    return find_fields(types, [name for subtype, name in _list_requests(types) if subtype in find_sent_fields()])


def find_own_sent(types: str) -> Iterator[str]:
    """Yield the fields that pilothouse sends, of the requests that a release declares."""
    for subtype, name in _list_requests(types):
        inner = _find_inner(types, name)
        sent = (f"{name}.{key}" for key in find_sent_fields().get(subtype, ()) if key not in inner)
        yield from (key for key in sent if key not in UNDECLARED)


# What pilothouse reads


def _list_wire_names(kind: type[msgspec.Struct]) -> set[str]:
    return {name for name in kind.__struct_encode_fields__ if not re.search(r"\W", name)}


def find_own_read(_: str) -> Iterator[str]:
    """Yield the fields of the answers that pilothouse reads."""
    for name, kind in READ.items():
        yield from (key for key in (f"{name}.{wire}" for wire in _list_wire_names(kind)) if key not in UNDECLARED)


def find_own_answered(types: str) -> Iterator[str]:
    """Yield the fields of the requests that pilothouse answers: of a class, and those that the module reads by name."""
    for name, module in ANSWERED.items():
        named = set(find_members(types, name)) & _find_words(Path(str(module.__file__)))
        kind = REQUEST_CLASSES.get(name)
        fields = (f"{name}.{key}" for key in named | (_list_wire_names(kind) if kind else set[str]()))
        yield from (field for field in fields if field not in LEFT_OUT)


@cache
def _find_words(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


# Hooks and answers

_BASE_INPUT = "BaseHookInput"
_COMMON_OUTPUTS = ("SyncHookJSONOutput", "AsyncHookJSONOutput")
_WIRE_NAMES = dict(zip(HookOutput.__struct_fields__, HookOutput.__struct_encode_fields__, strict=True))
_DECISIONS = ("allow", "deny", "ask", "defer")
_ANSWER_TYPES = ("PermissionResult", "PermissionRequestHookSpecificOutput")
_GATE_KEYS = frozenset({"permissionDecision", "decision", "action", "suppressOriginalPrompt"})
_OTHER_GATES = ("ConfigChange", "TaskCreated")
"""Events that a plain `decision: "block"` refuses, which no type tells."""


def _list_hooks(types: str) -> list[str]:
    return re.findall(r"'(\w+)'", "".join(re.findall(r"HOOK_EVENTS: readonly \[(.*?)\]", types)))


def find_hook_inputs(types: str) -> list[str]:
    """Return the fields of the events of a release."""
    return find_fields(types, [_BASE_INPUT, *(f"{event}HookInput" for event in _list_hooks(types))])


def find_own_hook_inputs(types: str) -> Iterator[str]:
    """Yield the fields of the classes of events."""
    base = _list_wire_names(HookEvent)
    yield from (f"{_BASE_INPUT}.{key}" for key in base)
    for event, rule in HOOK_EVENTS.items():
        name = f"{event}HookInput"
        repeated = base.intersection(find_members(types, name))
        yield from (f"{name}.{key}" for key in _list_declared(rule.event_class) | repeated)


def _list_declared(kind: type[HookEvent]) -> set[str]:
    own = {name for cls in kind.__mro__ if cls not in HookEvent.__mro__ for name in cls.__annotations__}
    wire = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return {wire[name] for name in own}


def find_hook_outputs(types: str) -> list[str]:
    """Return the fields of the outputs of hooks of a release, and the values of their decisions."""
    names = [*_COMMON_OUTPUTS, *(f"{event}HookSpecificOutput" for event in _list_hooks(types))]
    fields = [name for name in find_fields(types, names) if not name.endswith(".hookSpecificOutput")]
    return [*fields, *_find_decisions(types)]


def _find_decisions(types: str) -> Iterator[str]:
    unions = {name: text for name in ("HookPermissionDecision",) for text in re.findall(rf"type {name} = (.*);", types)}
    for event in _list_hooks(types):
        text = _find_text(types, f"{event}HookSpecificOutput")
        for values in re.findall(r"^ +(?:permissionDecision\?|behavior): (.*);", text, re.MULTILINE):
            yield from (f"{event}: {value}" for value in re.findall(r"'(\w+)'", unions.get(values, values)))


def find_own_hook_outputs(_: str) -> Iterator[str]:
    """Yield the fields that a hook may return, and the decisions."""
    special = {name for rule in HOOK_EVENTS.values() for name in rule.output_fields}
    for name, wire in _WIRE_NAMES.items():
        if name not in special:
            yield f"{_COMMON_OUTPUTS[name.startswith('async')]}.{wire}"
    for event, rule in HOOK_EVENTS.items():
        if event == "PermissionRequest":
            yield f"{event}HookSpecificOutput.decision"
        else:
            yield from (f"{event}HookSpecificOutput.{_WIRE_NAMES[name]}" for name in rule.output_fields)
        for decision in _DECISIONS if "permission_decision" in rule.output_fields else ():
            with suppress(UsageError):
                encode_output({"permission_decision": decision}, event)
                yield f"{event}: {decision}"


def find_answers(types: str) -> list[str]:
    """Return the fields of the answers to permission requests, of a callback and of a hook."""
    callback, hook = _ANSWER_TYPES
    inner = [f"{hook}.{key}" for key in _find_inner(types, hook)]
    return [*find_fields(types, [callback]), *(name for name in inner if name not in LEFT_OUT)]


def find_own_answers(_: str) -> Iterator[str]:
    """Yield the fields of both answers, as they are written."""
    callback, hook = _ANSWER_TYPES
    rule = requests.AddRules((requests.PermissionRule("Bash"),), "allow", "session")
    for decision in (requests.Allow({"a": 1}, (rule,)), requests.Deny("no", interrupt=True)):
        yield from (f"{callback}.{key}" for key in requests.encode_decision(decision, {}))
    for output in (
        HookOutput(permission_decision="allow", updated_input={"a": 1}, updated_permissions=[{}]),
        HookOutput(permission_decision="deny", permission_decision_reason="no", interrupt=True),
    ):
        written: Any = encode_output(output, "PermissionRequest")["hookSpecificOutput"]
        yield from (f"{hook}.{key}" for key in written["decision"])


def find_gates(types: str) -> Iterator[str]:
    """Yield the events of a release that a hook can refuse before they happen."""
    for event in _list_hooks(types):
        keys = find_members(types, f"{event}HookSpecificOutput")
        if event.startswith("Pre") or event in _OTHER_GATES or not _GATE_KEYS.isdisjoint(keys):
            yield event


def find_own_gates(_: str) -> Iterator[str]:
    """Yield the events that are refused when their hook fails."""
    yield from (event for event in HOOK_EVENTS if is_gate(event))


BODIES: Mapping[str, tuple[Callable[[str], Iterable[str]], Callable[[str], Iterable[str]]]] = {
    "fields of requests that pilothouse sends": (find_sent, find_own_sent),
    "fields of answers that it reads": (lambda types: find_fields(types, READ), find_own_read),
    "fields of requests that it answers": (lambda types: find_fields(types, ANSWERED), find_own_answered),
    "fields of its answers": (find_answers, find_own_answers),
    "fields of hook events": (find_hook_inputs, find_own_hook_inputs),
    "fields and decisions of hooks": (find_hook_outputs, find_own_hook_outputs),
    "hooks that gate": (find_gates, find_own_gates),
}
"""What a release has, and what pilothouse has, by title. A difference in either direction is an error."""
