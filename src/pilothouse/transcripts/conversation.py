"""From the rows of a file to the conversation: which of them belong to it, and in which order. Pure.

Rules of CLI 2.1.330, which resumes what this finds:

- Every row names its predecessor. The conversation is the way from its last row back to its first.
- The last row is the last in the file, unless a checkpoint after it says otherwise: an explicit `last-prompt` row,
  which a rewind writes.
- Rows of side conversations (sub-agents, teams) never belong to it.
- A compaction begins anew. What it has kept follows its summary.
- A message of the API is several rows, one a block. Calls that ran in parallel are answered beside the way; they and
  their answers are put back behind the message.
- A predecessor that is missing is replaced by the row before; a circle is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilothouse.transcripts.rows import CHAINED, SPOKEN, Row


class Conversation:
    """The order of the rows of one file.

    Args:
        rows: all of them, as they stand in the file.
        whole: what compactions have replaced belongs to it as well.
        up_to: the id of its last row; None: as the CLI would resume it.
        sidechain: whether this is the file of a sub-agent, in which every row is of a side conversation.

    Attributes:
        rows: those of the conversation, in its order.
        problems: the row before which something is missing or turns in a circle, and what.
    """

    def __init__(
        self, rows: Sequence[Row], *, whole: bool = False, up_to: str | None = None, sidechain: bool = False
    ) -> None:
        self.problems: list[tuple[Row, str]] = []
        self._whole = whole
        chained = [row for row in rows if row.type in CHAINED and row.uuid is not None]
        if up_to is not None:
            chained = _until(chained, up_to)
        main = [row for row in chained if sidechain or not (row.is_sidechain or row.team_name)]
        self._by_uuid: dict[str, Row] = {row.uuid: row for row in main if row.uuid is not None}
        self._parents = {key: row.parent_uuid for key, row in self._by_uuid.items()}
        self._order = {row.uuid: place for place, row in enumerate(main)}
        self._main = main
        self._gone: set[str] = set()
        if not whole:
            self._forget_before(self._last_boundary())
        leaf = up_to if up_to is not None else _leaf(rows, self._by_uuid)
        way = self._way(leaf)
        self.rows = self._with_parallel(way)

    def _last_boundary(self) -> Row | None:
        return next((row for row in reversed(self._main) if row.is_boundary and row.uuid in self._by_uuid), None)

    def _forget_before(self, boundary: Row | None) -> None:
        if boundary is None or boundary.uuid is None:
            return
        kept, anchor = self._kept(boundary)
        if any(key not in self._by_uuid for key in kept):
            kept = []
        start = self._order[boundary.uuid]
        gone = {key for key in self._by_uuid if self._order[key] < start} - set(kept)
        self._gone = gone
        for key in gone:
            del self._by_uuid[key]
        if kept:
            self._hang_in(kept, anchor, gone)

    def _hang_in(self, kept: list[str], anchor: str | None, gone: set[str]) -> None:
        """Let the kept rows follow the summary, and what followed the summary, or a forgotten row, follow them."""
        own = set(kept)
        followers = [
            key
            for key, row in self._by_uuid.items()
            if key not in own and (self._parents[key] == anchor or (row.type in SPOKEN and self._parents[key] in gone))
        ]
        for before, key in zip([anchor, *kept], kept, strict=False):
            self._parents[key] = before
        for key in followers:
            self._parents[key] = kept[-1]

    def _kept(self, boundary: Row) -> tuple[list[str], str | None]:
        told = boundary.compact_metadata
        if told is None:
            return [], None
        if told.preserved_messages is not None:
            return told.preserved_messages.uuids or [], told.preserved_messages.anchor_uuid
        stretch = told.preserved_segment
        if stretch is None:
            return [], None
        keys: dict[str, None] = {}
        key = stretch.tail_uuid
        while key is not None and key in self._by_uuid and key not in keys:
            keys[key] = None
            if key == stretch.head_uuid:
                return list(keys)[::-1], stretch.anchor_uuid
            key = self._parents[key]
        return [], None

    def _way(self, leaf: str | None) -> list[Row]:
        way: list[Row] = []
        seen: set[str] = set()
        row = self._by_uuid.get(leaf) if leaf is not None else None
        while row is not None and row.uuid is not None:
            seen.add(row.uuid)
            way.append(row)
            row = self._before(row, seen)
        return way[::-1]

    def _before(self, row: Row, seen: set[str]) -> Row | None:
        parent = self._parents[row.uuid or ""]
        if parent is None and self._whole and row.is_boundary:
            parent = row.logical_parent_uuid
        if parent is None:
            return None
        if parent in seen:
            self.problems.append((row, "its predecessors turn in a circle"))
            return None
        found = self._by_uuid.get(parent)
        if found is None and not (row.is_boundary or self._is_first(row)):
            if parent not in self._gone:
                self.problems.append((row, f"its predecessor {parent[:40]} is missing; the row before it is taken"))
            found = self._row_before(row, seen)
        return found

    def _is_first(self, row: Row) -> bool:
        return self._order[row.uuid] == 0

    def _row_before(self, row: Row, seen: set[str]) -> Row | None:
        for place in range(self._order[row.uuid] - 1, -1, -1):
            candidate = self._main[place]
            if candidate.uuid in self._by_uuid and candidate.uuid not in seen:
                return candidate
        return None

    def _with_parallel(self, way: list[Row]) -> list[Row]:
        """Put back what ran in parallel: blocks of a message on the way, and answers to its calls."""
        on_way = {row.uuid for row in way}
        last = {_message_id(row): place for place, row in enumerate(way) if _message_id(row) is not None}
        beside, owner = self._beside(on_way, last)
        if not beside:
            return way
        complete: list[Row] = []
        place = 0
        while place < len(way):
            row = way[place]
            complete.append(row)
            place += 1
            key = _message_id(row)
            if key is None or last[key] != place - 1 or key not in beside:
                continue
            answers = [extra for extra in beside[key] if extra.type == "user"]
            complete += [extra for extra in beside[key] if extra.type == "assistant"]
            while place < len(way) and key in {owner.get(call) for call in way[place].ids_of("tool_result")}:
                answers.append(way[place])
                place += 1
            complete += sorted(answers, key=lambda answer: self._order[answer.uuid])
        return complete

    def _beside(
        self, on_way: set[str | None], last: Mapping[str | None, int]
    ) -> tuple[dict[str, list[Row]], dict[str, str]]:
        """By message on the way: its blocks and answers that are not on it; and which message each call is of."""
        owner: dict[str, str] = {}
        for row in self._by_uuid.values():
            key = _message_id(row)
            if key is not None and key in last:
                owner.update(dict.fromkeys(row.ids_of("tool_use"), key))
        answered = {call for key in on_way if key for call in self._by_uuid[key].ids_of("tool_result")}
        beside: dict[str, list[Row]] = {}
        for row in self._by_uuid.values():
            if row.uuid in on_way:
                continue
            key = _message_id(row)
            if key is not None and key in last:
                beside.setdefault(key, []).append(row)
            elif row.type == "user":
                calls = [call for call in row.ids_of("tool_result") if call in owner and call not in answered]
                if calls:
                    answered.update(calls)
                    beside.setdefault(owner[calls[0]], []).append(row)
        return beside, owner


def _until(rows: list[Row], key: str) -> list[Row]:
    """The rows up to one, and the other answers to calls of its message that stand behind it are not among them."""
    place = next((place for place in range(len(rows) - 1, -1, -1) if rows[place].uuid == key), len(rows) - 1)
    return rows[: place + 1]


def _leaf(rows: Sequence[Row], known: Mapping[str, Row]) -> str | None:
    """The last row of the conversation; None: it was rewound to nothing, or there is none."""
    leaf: str | None = None
    for row in rows:
        if row.type in CHAINED:
            if row.uuid in known:
                leaf = row.uuid
        elif row.type == "last-prompt" and row.explicit and (row.leaf_uuid is None or row.leaf_uuid in known):
            leaf = row.leaf_uuid
    return leaf


def _message_id(row: Row) -> str | None:
    return row.message.id if row.type == "assistant" and row.message is not None else None
