"""An import: chunks of a file, each sent over several connections, each followed by a checkpoint.

Likes of one person never overtake each other: within a chunk they share a connection, and a chunk is answered
in full before the next one is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path

from tallymark.cli.batches import BATCH_MAX_OPERATIONS, Answered, Patience, Post, StoppedError, send
from tallymark.cli.checkpoint import Checkpoint, Tally
from tallymark.cli.filters import Condition
from tallymark.cli.progress import Progress
from tallymark.cli.rows import Columns, Operation, Record, Reject, matches, operation_of

CHUNK_OPERATIONS = 4000  # what an interrupted import sends again at most
CHUNK_ROWS = 100_000  # a filter that lets little through must not keep the checkpoint from moving


@dataclass(slots=True)
class Chunk:
    """A stretch of the file: the likes that it asks for, its bad rows, and the byte at which it ends."""

    operations: list[Operation] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    read: int = 0
    matched: int = 0
    end: int = 0

    def full(self) -> bool:
        """Whether it is time for the next one."""
        return len(self.operations) >= CHUNK_OPERATIONS or self.read >= CHUNK_ROWS


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are likes, and of what."""

    conditions: Sequence[Condition]
    columns: Columns


def chunks(rows: Iterable[Record | Reject], selection: Selection, position: Callable[[], int]) -> Iterator[Chunk]:
    """The rows in stretches; `position` tells how many bytes have been read so far."""
    chunk = Chunk()
    for row in rows:
        _add(chunk, row, selection)
        if chunk.full():
            chunk.end = position()
            yield chunk
            chunk = Chunk()
    if chunk.read:
        chunk.end = position()
        yield chunk


def _add(chunk: Chunk, row: Record | Reject, selection: Selection) -> None:
    chunk.read += 1
    wanted = row if isinstance(row, Reject) else matches(row, selection.conditions)
    if isinstance(wanted, Reject):
        chunk.rejects.append(wanted)
    elif wanted and isinstance(row, Record):
        chunk.matched += 1
        operation = operation_of(row, selection.columns)
        if isinstance(operation, Reject):
            chunk.rejects.append(operation)
        else:
            chunk.operations.append(operation)


def lanes(operations: Iterable[Operation], count: int) -> list[list[Operation]]:
    """The operations in up to `count` lists of nearly one length; each person's in one of them, in order."""
    people: dict[str, list[Operation]] = {}
    for operation in operations:
        people.setdefault(operation.person, []).append(operation)
    shared: list[list[Operation]] = [[] for _ in range(count)]
    for theirs in sorted(people.values(), key=len, reverse=True):
        min(shared, key=len).extend(theirs)
    return [lane for lane in shared if lane]


@dataclass(frozen=True, slots=True)
class Rejects:
    """The file of `--rejects`: a JSON object a line. Without a path nothing is written."""

    path: Path | None

    def cut(self, size: int) -> None:
        """Drops what an interrupted run wrote after its last checkpoint; size 0 starts the file anew."""
        if self.path is None:
            return
        with self.path.open("ab") as file:
            file.truncate(min(size, file.tell()))

    def write(self, rejects: Iterable[Reject]) -> int:
        """Adds to the file; its size afterwards."""
        if self.path is None:
            return 0
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_spelt(reject)) + "\n" for reject in rejects)
            return file.tell()


def _spelt(reject: Reject) -> dict[str, object]:
    named = {"line": reject.line, "code": reject.code, "message": reject.message}
    if reject.field is not None:
        named["field"] = reject.field
    return {**named, "row": reject.row}


@dataclass(frozen=True, slots=True)
class Import:
    """What an import works with."""

    post: Post
    connections: int
    patience: Patience
    progress: Progress
    rejects: Rejects
    checkpoint: Checkpoint | None

    def resume(self) -> Tally:
        """The tally to go on with: that of the last checkpoint, or zeros."""
        tally = (self.checkpoint.load() if self.checkpoint else None) or Tally()
        self.rejects.cut(tally.rejects_bytes)
        return tally

    def run(
        self,
        rows: Iterator[Record | Reject],
        selection: Selection,
        position: Callable[[], int],
        tally: Tally,
    ) -> None:
        """Sends what follows the tally's rows, and keeps the tally.

        Raises ApiError where it cannot go on; the checkpoint then tells the next run where to begin.
        """
        next(islice(rows, tally.read, tally.read), None)
        self.progress.start(position() if tally.read else 0)
        with ThreadPoolExecutor(self.connections, thread_name_prefix="import") as pool:
            try:
                self._send_all(pool, chunks(rows, selection, position), tally)
            except BaseException:
                self.patience.stop.set()  # an interrupt, too, ends all connections
                raise
        self.progress.finish()
        if self.checkpoint:
            self.checkpoint.clear()

    def _send_all(self, pool: ThreadPoolExecutor, stretches: Iterator[Chunk], tally: Tally) -> None:
        chunk = next(stretches, None)
        while chunk is not None:
            self.progress.begin(chunk.end, len(chunk.operations))
            answers = [pool.submit(self._send_lane, lane) for lane in lanes(chunk.operations, self.connections)]
            following = next(stretches, None)  # read while the server works
            self._settle(chunk, _joined(answers), tally)
            chunk = following

    def _send_lane(self, lane: list[Operation]) -> Answered:
        total = Answered()
        for first in range(0, len(lane), BATCH_MAX_OPERATIONS):
            answered = send(lane[first : first + BATCH_MAX_OPERATIONS], self.post, self.patience)
            self.progress.advance(len(answered))
            total += answered
        return total

    def _settle(self, chunk: Chunk, answered: Answered, tally: Tally) -> None:
        rejects = sorted([*chunk.rejects, *answered.rejects], key=attrgetter("line"))
        tally.add(chunk.read, chunk.matched, rejects)
        tally.liked += answered.liked
        tally.already += answered.already
        tally.rejects_bytes = self.rejects.write(rejects)
        if self.checkpoint:
            self.checkpoint.save(tally)


def _joined(answers: list[Future[Answered]]) -> Answered:
    """All answers of a chunk; raises the first error that was not merely the consequence of another."""
    finished, _ = wait(answers, return_when=FIRST_EXCEPTION)
    failures = [error for answer in finished if (error := answer.exception()) is not None]
    for error in failures:
        if not isinstance(error, StoppedError):
            raise error
    return sum((answer.result() for answer in answers), Answered())
