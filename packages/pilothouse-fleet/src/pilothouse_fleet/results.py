"""Delivers the results of runs to their readers.

Owns buffers, subscriptions, the iterator `Runs`, and JSON Lines and CSV files. Knows no journal.
"""

from __future__ import annotations

import csv
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TextIO, TypedDict, TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from pilothouse.client import OutputSchema, OutputT
from pilothouse.errors import StructuredOutputError, UsageError
from pilothouse.options import Options
from pilothouse.support import LoopCondition, encode_json, make_loop_caller, user_class
from pilothouse_fleet.run import Run

T = TypeVar("T")
Items = Iterable[T] | AsyncIterable[T]
ItemFunction = Callable[[T], Any]
OptionsLike = Options | Mapping[str, Any] | None


class ItemArguments(TypedDict, Generic[T], total=False):
    """Arguments of `Fleet.map` and `Fleet.gather`, which explain them."""

    key: ItemFunction[T] | str | None
    prompt: ItemFunction[T] | str | None
    options: ItemFunction[T] | OptionsLike
    priority: ItemFunction[T] | int


class RunArguments(TypedDict, total=False):
    """Arguments of `Fleet.submit`, which explains them."""

    key: str | int | None
    options: OptionsLike
    priority: int


BATCH_SIZE = 500
"""Maximum number of items that are added to a journal together."""
_END = object()
_CONTAINER_TYPES = (list, tuple, str, range, set, frozenset, dict)  # the next item is available without waiting


class ResultBuffer:
    """The buffer of one reader: runs that are ready, and keys of runs to come."""

    def __init__(self, look_ahead: int, on_taken: Callable[[], object]) -> None:
        self.ready: deque[Run] = deque()
        self.pending_keys: set[str] = set()
        self.is_filled = False  # no further runs will be added
        self.is_closed = False  # the reader has left
        self.is_parked = False  # its pending runs are not started any more
        self.wants_all = False  # it receives the ends of all runs, not only of its pending ones
        self.is_worker = False  # it wants all; when its reader has left, nothing starts
        self.is_draining = False  # unfinished runs are requeued; the buffer is filled when none is left
        self._look_ahead = look_ahead
        self._on_taken = on_taken
        self._error: Exception | None = None
        self._changed = LoopCondition()
        self._space = LoopCondition()

    @property
    def is_finished(self) -> bool:
        """Whether no further run will arrive."""
        return self.is_closed or (self.is_filled and not self.pending_keys)

    async def next(self) -> Run | None:
        """Return the next run; None: there are no more. After all ready runs, it raises the error passed to `fail`."""
        await self._changed.wait_until(lambda: bool(self.ready or self._error) or self.is_finished)
        if self.ready:
            run = self.ready.popleft()
            if self._free >= self._look_ahead // 4:  # a journal adds several runs together
                self._space.notify_all()
            self._on_taken()
            return run
        if self._error is not None:
            error, self._error = self._error, None
            self.is_closed = self.is_parked = True  # started runs go on
            self._space.notify_all()
            raise error
        return None

    @property
    def _free(self) -> int:
        return self._look_ahead - len(self.ready) - len(self.pending_keys)

    async def wait_for_space(self) -> int:
        """Wait until runs may be added; return how many. 0: the buffer is closed."""
        await self._space.wait_until(lambda: self.is_closed or self._free > 0)
        return 0 if self.is_closed else min(self._free, BATCH_SIZE)

    def put(self, run: Run) -> None:
        """Add a run that has ended."""
        self.pending_keys.discard(run.key)
        if not self.is_closed:
            self.ready.append(run)
        self._changed.notify_all()

    def discard(self, key: str) -> None:
        """Stop waiting for a run."""
        self.pending_keys.discard(key)
        self._changed.notify_all()

    def mark_filled(self) -> None:
        """Mark that there are no more items."""
        self.is_filled = True
        self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Raise `error` to the reader after all ready runs."""
        if self._error is None and not self.is_finished:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Close the buffer: its reader has left."""
        self.is_closed = True
        self._changed.notify_all()
        self._space.notify_all()
        self._on_taken()


@user_class
class Runs(Generic[OutputT]):
    """Runs as they end; iterate over it once. Made by `Fleet.map`, `Fleet.resume` and `Fleet.work`.

    Leaving the loop early starts no more runs; running ones continue until the block of the fleet ends.
    """

    def __init__(self, buffer: ResultBuffer, begin: Callable[[ResultBuffer], object]) -> None:
        self._buffer = buffer
        self._begin: Callable[[ResultBuffer], object] | None = begin
        self._call_in_loop: Callable[[Callable[[], object]], None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run[OutputT]:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin(self._buffer)
            self._call_in_loop = make_loop_caller()
        run = await self._buffer.next()
        if run is None:
            raise StopAsyncIteration
        return run

    def close(self) -> None:
        """Start no more runs. Idempotent. Dropping the iterator has the same effect, a little later."""
        self._buffer.close()

    def __del__(self) -> None:  # in any thread, at any time
        if (call := getattr(self, "_call_in_loop", None)) is not None:  # unset if `__init__` failed
            call(self._buffer.close)


async def iterate_batches(
    items: Items[T], wait_for_space: Callable[[], Awaitable[int]]
) -> AsyncGenerator[list[T], None]:
    """Yield the items in lists of 1 up to `wait_for_space` items; advance plain iterators in a thread."""
    if isinstance(items, AsyncIterable):
        source = aiter(items)
        try:
            while await wait_for_space():
                try:
                    yield [await anext(source)]
                except StopAsyncIteration:
                    return
        finally:
            if (close := getattr(source, "aclose", None)) is not None:
                with anyio.CancelScope(shield=True):
                    await close()
        return
    iterator = iter(items)
    while count := await wait_for_space():
        if isinstance(items, _CONTAINER_TYPES):
            batch = [item for _, item in zip(range(count), iterator, strict=False)]
        else:
            one: Any = await anyio.to_thread.run_sync(partial(next, iterator, _END), abandon_on_cancel=True)
            batch = [] if one is _END else [one]
        if not batch:
            return
        yield batch


def decode_output(run: Run, output_type: Any) -> Run:
    """Restore the typed output of a run that was read from a journal."""
    result = run.result
    if output_type is not None and run.is_success and result is not None and result.output is None:
        try:
            result.output, result.structured = OutputSchema.from_type(output_type).read(result.result)
        except StructuredOutputError as error:
            return replace(run, state="failed", error=error)
    return run


ParkRuns = Callable[[Collection[str] | None, Collection[str]], Awaitable[None]]


class RunSubscribers:
    """The readers of one fleet."""

    def __init__(self, look_ahead: int, wake: Callable[[], object]) -> None:
        self._look_ahead = look_ahead
        self._wake = wake
        self._buffers: list[ResultBuffer] = []
        self._buffers_by_key: dict[str, list[ResultBuffer]] = {}
        self.output_types: dict[str, Any] = {}
        self._has_left_worker_loop = False
        self.unclaimed_runs: dict[str, Run | None] = {}
        """Runs without a reader, kept until `wait` asks for them, as no journal keeps them; None: not ended yet."""

    def make_buffer(self) -> ResultBuffer:
        """Make a buffer for one more reader; it receives runs after `subscribe`."""
        return ResultBuffer(self._look_ahead, self._on_taken)

    def subscribe(self, buffer: ResultBuffer) -> None:
        """Add a buffer that is being read."""
        self._buffers.append(buffer)
        if buffer.is_worker:
            self._has_left_worker_loop = False

    def expect(self, key: str, buffer: ResultBuffer | None, output_type: Any) -> None:
        """Make `buffer` wait for a run, and set the type of its output."""
        if output_type is not None:
            self.output_types[key] = output_type
        if buffer is not None and key not in buffer.pending_keys:
            buffer.pending_keys.add(key)
            self._buffers_by_key.setdefault(key, []).append(buffer)

    def unsubscribe(self, key: str, buffer: ResultBuffer | None) -> None:
        """Stop waiting for a run in `buffer`."""
        if buffer is None or buffer not in (waiting := self._buffers_by_key.get(key, [])):
            return
        buffer.discard(key)
        waiting.remove(buffer)
        if not waiting:
            del self._buffers_by_key[key]

    def withdraw(self, key: str, buffer: ResultBuffer | None) -> None:
        """Stop waiting for a run in `buffer`, which had requested it."""
        self.unsubscribe(key, buffer)
        if buffer is not None and key not in self._buffers_by_key:
            self.output_types.pop(key, None)

    def deliver(self, run: Run) -> None:
        """Deliver a run that has ended to its readers."""
        run = self.deliver_known(run)
        for buffer in self._buffers:
            if buffer.wants_all:
                buffer.put(run)

    def deliver_known(self, run: Run) -> Run:
        """Deliver a run that had ended before to those that wait for its key; return it with its output."""
        run = decode_output(run, self.output_types.pop(run.key, None))
        for buffer in self._buffers_by_key.pop(run.key, []):
            buffer.put(run)
        if run.key in self.unclaimed_runs:
            self.unclaimed_runs[run.key] = run
        return run

    def fail(self, make: Callable[[], Exception]) -> None:
        """Raise an error to all readers: no more runs will end."""
        for buffer in self._buffers:
            if not buffer.is_finished:
                buffer.fail(make())

    def close(self, make: Callable[[], Exception]) -> None:
        """Start no more runs for readers, and raise an error to them; those that wait for one run keep waiting."""
        for buffer in self._buffers:
            if not buffer.is_parked:
                buffer.fail(make())
                buffer.close()

    async def remove_closed(self, park: ParkRuns) -> None:
        """Remove closed buffers, and park the runs that only they waited for; an open `resume` or `work` wants all."""
        are_all_wanted = any(buffer.wants_all and not buffer.is_closed for buffer in self._buffers)
        for buffer in [buffer for buffer in self._buffers if buffer.is_closed and not buffer.is_parked]:
            buffer.is_parked = True
            if buffer.is_filled and not buffer.pending_keys:  # nothing that it waited for is left
                continue
            buffer.close()  # if the iterator was only dropped
            left = list(buffer.pending_keys)
            for key in left:
                self.withdraw(key, buffer)
            if buffer.is_worker:  # what it did not start stays queued
                self._has_left_worker_loop = True
                continue
            if not are_all_wanted:
                await park(None if buffer.wants_all else left, set(self.pending_keys))
        self._buffers = [buffer for buffer in self._buffers if not buffer.is_finished]

    @property
    def draining_buffers(self) -> list[ResultBuffer]:
        """The buffers that wait until no runs are left, and whose runs are queued."""
        return [buffer for buffer in self._buffers if buffer.is_draining]

    @property
    def pending_keys(self) -> list[str]:
        """The keys of the runs that readers wait for."""
        return [*self._buffers_by_key, *(key for key, run in self.unclaimed_runs.items() if run is None)]

    @property
    def has_capacity(self) -> bool:
        """Whether more runs may be started: a reader waits, and readers of all ends keep up with them."""
        if self._has_left_worker_loop and not any(one.pending_keys or one.wants_all for one in self._buffers):
            return False
        return all(len(buffer.ready) < self._look_ahead for buffer in self._buffers if buffer.wants_all)

    def _on_taken(self) -> None:
        if any(buffer.wants_all or buffer.is_closed for buffer in self._buffers):
            self._wake()


ROW_COLUMNS = (
    "key", "state", "text", "structured", "error_type", "error", "attempts", "session_id", "cost_usd", "input_tokens",
    "output_tokens", "turns", "created", "started", "ended", "artifacts",
)  # fmt: skip
"""The columns of a row, in CSV order. Times are Unix seconds."""


def run_row(run: Run) -> dict[str, Any]:
    """Convert a run to a flat mapping of plain values with the names of `ROW_COLUMNS`."""
    result, error = run.result, run.error if not run.is_success else None
    own = {
        "text": run.text if error is None else "",
        "structured": None if result is None else result.structured,
        "error_type": None if error is None else type(error).__name__,
        "error": None if error is None else str(error),
        "turns": 0 if result is None else result.turns,
    }
    return {name: own[name] if name in own else getattr(run, name) for name in ROW_COLUMNS}


class RunWriter:
    """Writes runs to a file as they come; use it with `with`.

    Args:
        path: the file; its suffix sets the format: ".csv" for CSV, anything else for JSON Lines.
        append: whether to append to an existing file; otherwise it is overwritten.

    Raises:
        UsageError: its directory does not exist.
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise UsageError(f"there is no directory {self._path.parent}")
        # newline="": line ends inside cells stay as they are.
        mode = "a" if append else "w"
        self._file: TextIO = self._path.open(mode, encoding="utf-8", errors="backslashreplace", newline="")
        self._csv = csv.writer(self._file) if self._path.suffix.lower() == ".csv" else None
        if self._csv is not None and not self._file.tell():
            self._csv.writerow(ROW_COLUMNS)

    def write(self, run: Run) -> None:
        """Write one run; it is in the file when this method returns."""
        row = run_row(run)
        if self._csv is not None:
            self._csv.writerow([_format_cell(row[name]) for name in ROW_COLUMNS])
        else:
            self._file.write(encode_json(row).decode() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_json(value).decode()
