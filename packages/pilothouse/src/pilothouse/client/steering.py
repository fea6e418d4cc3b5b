"""`Steering`: words for a turn that runs, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pilothouse.errors import UsageError

if TYPE_CHECKING:
    from pilothouse.client.queries import Query
    from pilothouse.engine import QueryRun

SteerTime = Literal["next", "now"]
LateWords = Literal["ask", "return"]
SteerOutcome = Literal["taken", "next_turn", "query", "returned"]

_CHOICES: Final = {"when": get_args(SteerTime), "if_late": get_args(LateWords)}


class Steering:
    """Words that were given to a query while it works. Made by `Query.steer` and `Session.steer`."""

    def __init__(
        self, query: Query[Any] | None, run: QueryRun | None = None, uuid: str = "", before: int | None = None
    ) -> None:
        self._query = query
        self._run = run
        self._uuid = uuid
        self._before = before

    def __repr__(self) -> str:
        return f"<Steering of {self._query!r}>"

    @property
    def id(self) -> str:
        """Id of the words as a prompt, by which Claude Code's messages name them; "" where they became none."""
        return self._uuid or ("" if self._query is None else self._query.id)

    @property
    def query(self) -> Query[Any] | None:
        """The query that the words were given to, or that was made of them; None: neither."""
        return self._query

    @property
    def was_sent(self) -> bool:
        """Whether the words were given to a turn."""
        return self._before is not None

    async def outcome(self) -> SteerOutcome:
        """Wait until Claude Code has said what became of the words.

        Returns:
            "taken": the turn that ran has them, from its next request to the model on. "next_turn": that turn had
            ended, by itself or for them (`when="now"`), and the query went on with them. "query": no turn ran, so
            they became a query of the session, `query`. "returned": nobody has them.
        """
        if self._run is None:
            return "returned" if self._query is None else "query"
        if self._before is None:
            return "returned"
        taken = await self._run.wait_taken(self._uuid)
        if taken is None:
            return "returned"
        return "taken" if taken == self._before else "next_turn"


def check_choices(**given: str) -> None:
    """Check `when` and `if_late`.

    Raises:
        UsageError: not one of the values.
    """
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise UsageError(f"{name}: expected {' or '.join(map(repr, _CHOICES[name]))}, got {value!r}")
