"""What an import shows on stderr while it runs."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 5.0
_BAR_WIDTH = 24


@dataclass(slots=True)
class Progress:
    """A bar that redraws itself on a terminal, a line now and then elsewhere. Called from all connections.

    The share done is that of the file's bytes, since nobody has counted its rows; `size` is None for a pipe.
    """

    out: TextIO
    size: int | None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _started: float = 0.0
    _drawn: float = 0.0
    _first: int = 0  # byte at which this run began to send
    _base: int = 0  # bytes of the chunks that are done
    _next: int = 0  # where the chunk that is being sent ends
    _in_chunk: int = 0
    _chunk: int = 1
    _total: int = 0

    def start(self, position: int) -> None:
        """From here on time counts; what lies before was done by an earlier run."""
        self._started = self._drawn = self.clock()
        self._first = self._base = self._next = position

    def begin(self, end: int, operations: int) -> None:
        """The next so many likes are those up to byte `end`."""
        with self._lock:
            self._base, self._next = self._next, end
            self._in_chunk, self._chunk = 0, max(1, operations)

    def advance(self, operations: int) -> None:
        """So many likes more have their answer."""
        with self._lock:
            self._in_chunk += operations
            self._total += operations
            self._draw()

    def notice(self, text: str) -> None:
        """Something that explains a delay, when it is time to say something."""
        with self._lock:
            self._draw(note=text)

    def finish(self) -> None:
        """The last state, however short ago the one before was shown."""
        with self._lock:
            self._base, self._in_chunk = self._next, 0
            self._draw(last=True)

    def _draw(self, note: str = "", *, last: bool = False) -> None:
        terminal = self.out.isatty()
        now = self.clock()
        if not last and now - self._drawn < (_BAR_EVERY_S if terminal else _LINE_EVERY_S):
            return
        self._drawn = now
        text = self._text(now, bar=terminal)
        text = f"{text}  {note}" if note else text
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            self.out.write(f"\r\x1b[2K{text[:width]}" + ("\n" if last else ""))
        else:
            self.out.write(text + "\n")
        self.out.flush()

    def _text(self, now: float, *, bar: bool) -> str:
        elapsed = max(now - self._started, 1e-6)
        counted = f"{self._total:,} likes, {self._total / elapsed:,.0f}/s"
        if not self.size:
            return counted
        done = self._base + (self._next - self._base) * min(1.0, self._in_chunk / self._chunk)
        share = min(1.0, done / self.size)
        drawn = f"[{'#' * int(share * _BAR_WIDTH):<{_BAR_WIDTH}}] " if bar else ""
        return f"{drawn}{share:4.0%}  {counted}  ETA {self._eta(done, elapsed)}"

    def _eta(self, done: float, elapsed: float) -> str:
        ahead, behind = (self.size or 0) - done, done - self._first
        if behind <= 0:
            return "--:--"
        minutes, seconds = divmod(round(ahead * elapsed / behind), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
