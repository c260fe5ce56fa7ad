"""Runs a command and ends it, and whatever it started, when the one who asked is gone.

Called as `python guard.py COMMAND ...` with a pipe as standard input: its end, by whatever death of the other
side, is the sign. That works where a signal on the parent's death does not: macOS, and a parent thread that
ends before its process does. The guard itself has one thread, so on Linux the kernel ends the command when
somebody kills the guard. Standard library only and started with -I -S, so that it costs 15
ms.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(command: list[str]) -> int:
    """The command's exit code; 0 where it was ended from here."""
    child = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin.buffer], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1):
            _end(child)
            return 0
    _signal(child, signal.SIGKILL)
    return child.returncode or 0


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: "subprocess.Popen[bytes]") -> None:
    _signal(child, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    """To the whole group: the emulator's functions are processes of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
