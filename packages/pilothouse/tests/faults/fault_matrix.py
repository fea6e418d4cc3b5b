"""The fault matrix as data: what goes wrong, when, and what must come out.

Owns the tables; how a cell is played is in `fault_runner.py`, what the child does in `faulty_child_program.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final, Literal, NamedTuple

Subject = Literal["query", "session"]
Kind = Literal["deadly", "mute", "harmless"]


class Cell(NamedTuple):
    """One place of the matrix."""

    subject: Subject
    state: str
    fault: str


class Fault(NamedTuple):
    """Something that goes wrong in the child.

    Args:
        kind: whether the child is lost, says nothing more, or goes on as if nothing had been.
        seconds: until the caller is told, once it can be known; of `mute` ones, after the limit that was set.
        what: in words.
    """

    kind: Kind
    seconds: float
    what: str


class Outcome(NamedTuple):
    """What the caller gets.

    Args:
        first: the outcome of the call that met the fault, or the name of the error that it raised.
        following: the same of the next query of the session.
        new_child: whether that one has a child of its own.
    """

    first: str
    following: str = ""
    new_child: bool = False


FAULTS: Final[dict[str, Fault]] = {
    "SIGKILL": Fault("deadly", 1.0, "the child is killed"),
    "SIGTERM": Fault("deadly", 1.0, "the child is terminated from outside"),
    "exit 0": Fault("deadly", 1.0, "it leaves as if all were well"),
    "exit 1": Fault("deadly", 1.0, "it leaves with a word on standard error"),
    "output closed": Fault("deadly", 2.0, "it closes its output and lives on"),
    "cut last line": Fault("deadly", 1.0, "its last line breaks off, and it leaves with code 0"),
    "grandchild": Fault("deadly", 1.0, "it is killed, and a process that it has started holds the pipes open"),
    "silent": Fault("mute", 7.0, "it says nothing more, and does not leave when its input ends"),
    "deaf": Fault("mute", 7.0, "the same, and it reads nothing: what is sent fills the pipe"),
    "oversize line": Fault("harmless", 1.0, "a line that is longer than `max_line_bytes`"),
    "garbage": Fault("harmless", 1.0, "lines that are no JSON, no messages, or messages with wrong types"),
    "odd answers": Fault("harmless", 1.0, "answers to requests: of an unknown id, given twice, malformed"),
}

STATES: Final[dict[str, str]] = {
    "start": "it was started and has read nothing",
    "handshake": "it has read the handshake and not answered",
    "asked": "it has read the prompt and said nothing",
    "streaming": "in the middle of its answer",
    "tool": "a tool of this process runs for it",
    "hook": "it waits for a hook",
    "permission": "it waits for a permission",
    "deferred": 'its turn has ended, and a tool runs here before the next one (`tool_bridge="deferred"`)',
    "…, thread": "the same with sync functions in worker threads, which never return when the child is lost",
    "interrupt": "it was asked to stop and has not answered",
    "setting": "it was asked for another model, between two queries, and has not answered",
    "answered": "its result is there, and its input open",
    "idle": "between two queries; the first call is the next query",
    "closing": "it has seen the end of its input",
}
HAS_DEFERRED_BRIDGE: Final = find_spec("pilothouse_models") is not None
IN_A_THREAD: Final = {f"{state}, thread": state for state in ("tool", "hook", "permission", "deferred")}
"""Where that function is a sync one, which never returns when the child is lost; the names without that."""
ASKED: Final = frozenset({*IN_A_THREAD, *IN_A_THREAD.values()})
"""States in which a function of this process runs for the child."""

EXITED: Final = Outcome("CLIExitedError", "success", new_child=True)
QUIET: Final = Outcome("QueryTimeout", "success", new_child=True)
UNANSWERED: Final = Outcome("ControlTimeout", "success", new_child=True)
FINE: Final = Outcome("success", "success")
CLOSED: Final = Outcome("closed", "SessionClosedError")

_IN_A_TURN: Final = ("asked", "streaming", "tool", "hook", "permission", "deferred", *IN_A_THREAD)
_EARLY: Final = ("start", "handshake")

EXPECTED: Final[dict[Subject, dict[Kind, dict[str, Outcome]]]] = {
    "query": {
        "deadly": {
            **dict.fromkeys((*_EARLY, *_IN_A_TURN), Outcome("CLIExitedError")),
            "interrupt": Outcome("interrupted"),
            **dict.fromkeys(("answered", "closing"), Outcome("success")),
        },
        "mute": {
            **dict.fromkeys(_EARLY, Outcome("ControlTimeout")),
            **dict.fromkeys(_IN_A_TURN, Outcome("QueryTimeout")),
            "interrupt": Outcome("ControlTimeout"),
            **dict.fromkeys(("answered", "closing"), Outcome("success")),
        },
        "harmless": {
            **dict.fromkeys((*_EARLY, *_IN_A_TURN), Outcome("success")),
            "interrupt": Outcome("interrupted"),
            **dict.fromkeys(("answered", "closing"), Outcome("success")),
        },
    },
    "session": {
        "deadly": {
            **dict.fromkeys((*_EARLY, *_IN_A_TURN, "interrupt", "setting"), EXITED),
            "idle": Outcome("success", "success", new_child=True),
            "closing": CLOSED,
        },
        "mute": {
            **dict.fromkeys(_EARLY, UNANSWERED),
            **dict.fromkeys(_IN_A_TURN, QUIET),
            **dict.fromkeys(("interrupt", "setting"), UNANSWERED),
            "idle": QUIET,
            "closing": CLOSED,
        },
        "harmless": {
            **dict.fromkeys((*_EARLY, *_IN_A_TURN), FINE),
            "interrupt": Outcome("interrupted", "success"),
            "setting": Outcome("answered", "success"),
            "idle": FINE,
            "closing": CLOSED,
        },
    },
}


def expected(cell: Cell) -> Outcome:
    """What must come out."""
    return EXPECTED[cell.subject][FAULTS[cell.fault].kind][cell.state]


def cells(subject: Subject, fault: str) -> Iterator[Cell]:
    """All places of the matrix where `fault` meets `subject`, and which the installed packages have."""
    for state in EXPECTED[subject][FAULTS[fault].kind]:
        if HAS_DEFERRED_BRIDGE or not state.startswith("deferred"):
            yield Cell(subject, state, fault)
