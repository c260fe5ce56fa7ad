"""Where a running local stack is found: a file that `tallymark` reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Announcement:
    """What a client needs to talk to a stack on this machine."""

    url: str
    service_key: str
    endpoint_url: str
    pid: int


def place() -> Path:
    """The file's path: one for each person on a machine."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tallymark" / "local.json"


def publish(announcement: Announcement) -> bool:
    """Writes the file for its owner alone: it holds the service key.

    False, and nothing is written, while another stack is announced there that still runs.
    """
    path = place()
    if _runs(_announced(path).get("pid")):
        return False
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(f".{announcement.pid}")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(announcement), file)
    part.replace(path)
    return True


def withdraw(announcement: Announcement) -> None:
    """Removes the file, unless another stack has written its own since."""
    path = place()
    if _announced(path).get("pid") == announcement.pid:
        path.unlink(missing_ok=True)


def _announced(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _runs(pid: object) -> bool:
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
