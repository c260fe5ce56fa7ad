"""`python -m infra.local up` runs the whole service; `... pump` and `... api` are parts of it for a deployed stack."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from infra.local.announcement import Announcement, place, publish, withdraw
from infra.local.processes import StartError, require_free

if TYPE_CHECKING:
    from infra.local.stack import Stack

DEFAULT_PORT = 8000
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_CACHE = "Valkey ended by itself. Likes and counts go on without it, as /health says; `make up` anew brings it back."

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".tallymark"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a clean stop, 1 where something did not start or ended by itself."""
    options = _parser().parse_args(arguments)
    # SIGTERM and a closed terminal end the stack as Ctrl-C does.
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        code = 0
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local", description="The whole service on one machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="the whole service on this machine, until Ctrl-C")
    up.add_argument("--port", type=int, default=DEFAULT_PORT, help="of the API (8000)")
    up.add_argument("--emulator-port", type=int, default=4566, help="of the emulator (4566)")
    up.add_argument("--auth", action="store_true", help="let the emulator enforce IAM policies")
    up.add_argument(
        "--parameter",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of template.yaml, such as AuthMode=iam; may be repeated",
    )
    up.set_defaults(run=_up)
    pump = commands.add_parser("pump", help="feed deployed functions from their streams and queues, until Ctrl-C")
    _add_place(pump)
    pump.add_argument("--endpoint-url", help="of an emulator; AWS itself without it")
    pump.add_argument(
        "--in-process", action="store_true", help="call the functions of this working copy instead, in this process"
    )
    pump.set_defaults(run=_pump)
    api = commands.add_parser("api", help="answer for a deployed stack's API with this working copy, until Ctrl-C")
    _add_place(api)
    api.add_argument("--endpoint-url", required=True, help="of an emulator")
    api.add_argument("--port", type=int, required=True, help="several processes may have the same")
    api.set_defaults(run=_api)
    return parser


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stack", default="tallymark", help="name of the deployed stack (tallymark)")
    command.add_argument("--ready", type=Path, metavar="FILE", help="is made once everything is begun")


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


# --- up -----------------------------------------------------------------------------------------------------


def _up(options: argparse.Namespace) -> int:
    started = time.monotonic()
    sys.dont_write_bytecode = False  # whatever the shell says: it halves the time that the next start takes
    home = HOME if options.port == DEFAULT_PORT else HOME / f"port-{options.port}"
    try:
        require_free(options.port, "the API", "--port")
        require_free(options.emulator_port, "the emulator", "--emulator-port")
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    with _output_to_files(home / "logs") as terminal:
        from infra.local.stack import Stack

        print("Tallymark starts on this machine. Ctrl-C stops it.\n", file=terminal)
        stack = Stack(
            options.port,
            options.emulator_port,
            auth=options.auth,
            parameters=dict(options.parameter),
            apart=True,
            home=home,
            progress=lambda what, seconds: print(f"  {what:<32}{seconds:5.1f} s", file=terminal),
        )
        try:
            stack.start()
            return _serve(stack, terminal, started)
        except Exception as error:
            from infra.local.deploy import DeployError  # not at the start: it loads the SDK, for a second

            if not isinstance(error, StartError | DeployError):
                raise
            print(f"\n{error}", file=terminal)
            return 1
        finally:
            _stop(stack, terminal)


def _serve(stack: Stack, terminal: TextIO, started: float) -> int:
    announcement = Announcement(stack.url, stack.service_key, stack.endpoint_url, os.getpid())
    announced = publish(announcement)
    try:
        print(_box(stack, time.monotonic() - started, _for_clients(announcement, announced)), file=terminal)
        return _watch(stack, terminal)
    finally:
        withdraw(announcement)


def _watch(stack: Stack, terminal: TextIO) -> int:
    """Waits for Ctrl-C, which ends it by KeyboardInterrupt; returns only when a part has ended by itself."""
    cached = True
    while not (gone := stack.ended):
        if cached and not stack.cache.running:
            cached = False
            print(f"{NO_CACHE} {_shown(stack.cache.log)} may say why.", file=terminal, flush=True)
        time.sleep(1)
    print(f"\n{gone.name} ended by itself; {_shown(gone.log)} may say why.", file=terminal)
    return 1


def _stop(stack: Stack, terminal: TextIO) -> None:
    # From here on everything ends in order and within seconds: a second Ctrl-C must not leave a half behind.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    started = time.monotonic()
    stack.stop()
    print(f"\nStopped in {time.monotonic() - started:.1f} s; nothing is left running.", file=terminal)


def _for_clients(announcement: Announcement, announced: bool) -> str:
    if announced:
        return f"{_shown(place())} holds URL and service key; `tallymark` reads it"
    return (
        "`tallymark` talks to the stack that was here first; for this one set\n"
        f"            TALLYMARK_URL={announcement.url} TALLYMARK_SERVICE_KEY={announcement.service_key}"
    )


def _box(stack: Stack, seconds: float, clients: str) -> str:
    curl = (
        f"curl -s {stack.url}/v1/like -H 'Content-Type: application/json' \\\n"
        '       -d \'{"user_id": "ada", "item_type": "film", "item_id": "1"}\''
    )
    lines = [
        f"Ready in {seconds:.1f} s.",
        "",
        f"  API       {stack.url}",
        f"  Docs      {stack.url}/docs",
        f"  Emulator  {stack.endpoint_url}  (stack {stack.stack_name}, AWS keys test / test)",
        f"  Logs      {_shown(stack.logs)}/  (functions.log is what the functions say)",
        f"  Clients   {clients}",
        "",
        "A first like, and its count two seconds later:",
        "",
        f"  {curl}",
        f"  sleep 2; curl -s '{stack.url}/v1/count?item_type=film&item_id=1'",
        "",
        "Ctrl-C stops everything, and what was liked here is gone with it.",
    ]
    return "\n" + "\n".join(lines)


def _shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    for start, sign in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(start):
            return f"{sign}{path.relative_to(start)}"
    return str(path)


@contextlib.contextmanager
def _output_to_files(folder: Path) -> Iterator[TextIO]:
    """Sends what this process prints to files in `folder`, and yields what still writes to the terminal.

    Functions log to standard output, as they do on Lambda; that is no reading for somebody who waits for an
    URL.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.log"):
        old.unlink()
    _log_to(logging.FileHandler(folder / "stack.log"))
    saved = [os.dup(number) for number in (1, 2)]
    with os.fdopen(os.dup(1), "w", buffering=1) as terminal, (folder / "functions.log").open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def _log_to(handler: logging.Handler) -> None:
    """What the stack itself says; functions have loggers of their own. Lines of one process do not tear another's."""
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("infra", "uvicorn"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)


# --- parts --------------------------------------------------------------------------------------------------


def _pump(options: argparse.Namespace) -> int:
    from infra.local.parts import feeding

    _log_to(logging.StreamHandler())
    with feeding(options.stack, options.endpoint_url, in_process=options.in_process) as fed:
        print(*fed, sep="\n")
        _say_ready(options)
        while True:
            time.sleep(1)


def _api(options: argparse.Namespace) -> int:
    from infra.local.parts import serving

    _log_to(logging.StreamHandler())
    with serving(options.stack, options.endpoint_url, options.port) as server:
        _say_ready(options)
        while server.running:
            time.sleep(1)
    return 1


def _say_ready(options: argparse.Namespace) -> None:
    if options.ready:
        options.ready.touch()


if __name__ == "__main__":
    sys.exit(main())
