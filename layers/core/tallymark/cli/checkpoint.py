"""How far an import has come, kept on disk so that an interrupted one goes on from there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tallymark.cli.rows import Reject

SHOWN_REJECTS = 10


@dataclass(slots=True)
class Tally:
    """What has become of the first `read` rows; the rejects file has `rejects_bytes` about them."""

    read: int = 0
    matched: int = 0
    liked: int = 0
    already: int = 0
    rejected: int = 0
    rejects_bytes: int = 0
    shown: list[Reject] = field(default_factory=list)

    def add(self, read: int, matched: int, rejects: Sequence[Reject]) -> None:
        """Counts rows that were read; the first bad rows of all are kept to be shown."""
        self.read += read
        self.matched += matched
        self.rejected += len(rejects)
        self.shown += rejects[: SHOWN_REJECTS - len(self.shown)]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One file per input file and options. Never wrong, only late: rows behind it may have been sent too."""

    path: Path

    def load(self) -> Tally | None:
        """The tally of an interrupted import; None when there is none, or none that can be read."""
        try:
            content = json.loads(self.path.read_bytes())
            shown = [Reject(**reject) for reject in content.pop("shown")]
            return Tally(**content, shown=shown)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, tally: Tally) -> None:
        """Replaces the checkpoint as a whole: a reader finds the old one or the new one."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(tally)))
        fresh.replace(self.path)

    def clear(self) -> None:
        """The import is complete; the next one starts from the first row."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def checkpoint_of(folder: Path, file: Path, options: Mapping[str, object]) -> Checkpoint:
    """The checkpoint of a file as it is now, imported with these options; a changed file has another one."""
    status = file.stat()
    identity = [str(file.resolve()), status.st_size, status.st_mtime_ns, dict(options)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return Checkpoint(folder / "imports" / f"{digest[:32]}.json")
