"""`tallymark import`: its options, and what it says at the end."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
import httpx

from tallymark.cli.batches import Patience, Post
from tallymark.cli.checkpoint import Tally, checkpoint_of
from tallymark.cli.connection import ApiError, Settings, call, connect
from tallymark.cli.filters import Condition, ConditionError, parse_condition
from tallymark.cli.importer import Import, Rejects, Selection, chunks
from tallymark.cli.options import Where, api_options, show
from tallymark.cli.progress import Progress
from tallymark.cli.rows import ColumnError, Columns, Record, Reject, read_csv, read_json_lines
from tallymark.cli.times import TIME_FORMS

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_SAMPLE = 3


def _conditions(_: click.Context, __: click.Parameter, sources: tuple[str, ...]) -> tuple[Condition, ...]:
    try:
        return tuple(parse_condition(source) for source in sources)
    except ConditionError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Input:
    """The file, opened: its rows, how far it has been read, and its size where it has one."""

    rows: Iterator[Record | Reject]
    position: Callable[[], int]
    size: int | None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the file spells rows."""

    form: str
    delimiter: str | None


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--format", "form", type=click.Choice(["csv", "tsv", "jsonl"]), help="Else by the file's extension.")
@click.option("--delimiter", help="What separates the columns of a CSV file; a comma unless given.")
@click.option("--user", default="user_id", show_default=True, help="The column with the user's id.")
@click.option("--item", default="item_id", show_default=True, help="The column with the item's id.")
@click.option("--type", "type_constant", help="The item type of all rows.")
@click.option("--type-column", help="The column with the item type.  [default: item_type, without --type]")
@click.option("--reaction", "reaction_constant", help="The reaction of all rows.")
@click.option("--reaction-column", help="The column with the reaction; where it is empty, `like`.")
@click.option("--time", "time_column", help="The column with the time of the like (needs a service key).")
@click.option(
    "--time-format",
    type=click.Choice(list(TIME_FORMS)),
    default="auto",
    show_default=True,
    help="auto takes RFC 3339, and epoch seconds or milliseconds by their size.",
)
@click.option(
    "--where",
    "conditions",
    callback=_conditions,
    multiple=True,
    help="Only rows that pass, such as 'rating>=4'; >= <= > < = !=. Given several times, all must pass.",
)
@click.option(
    "--rejects", type=click.Path(dir_okay=False, path_type=Path), help="Write all bad rows here (JSON lines)."
)
@click.option("--connections", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--give-up-after",
    type=click.FloatRange(0),
    default=180,
    show_default=True,
    help="Seconds without success.",
)
@click.option("--dry-run", is_flag=True, help="Read and check the file; send nothing.")
@api_options
def import_command(
    *,
    file: Path,
    form: str | None,
    delimiter: str | None,
    conditions: tuple[Condition, ...],
    dry_run: bool,
    where: Where,
    as_json: bool,
    rejects: Path | None,
    connections: int,
    give_up_after: float,
    **columns: Any,
) -> None:
    """Import likes from FILE (- is standard input).

    FILE is CSV with a header, or JSON lines. Given again, the command goes on where it was interrupted;
    a repeat of a complete import adds nothing. Bad rows are reported and skipped; the exit code is then 1.
    """
    selection = Selection(conditions, _columns(**columns))
    layout = _Layout(form or _FORMATS.get(file.suffix.lower()) or _unknown_format(), delimiter)
    with _opened(file, layout, selection) as source:
        if dry_run:
            _show_dry_run(source, selection, as_json=as_json)
            return
        settings = where.settings()
        if selection.columns.time is not None and settings.service_key is None:
            raise click.UsageError("--time needs a service key: only a service may say when a like was made")
        checkpoint = None
        if source.size is not None:
            checkpoint = checkpoint_of(where.folder, file, _identity(settings, layout, selection, rejects))
        progress = Progress(sys.stderr, source.size)
        with connect(settings, connections) as client:
            work = Import(
                post=_poster(client),
                connections=connections,
                patience=Patience(give_up_s=give_up_after, notice=progress.notice),
                progress=progress,
                rejects=Rejects(rejects),
                checkpoint=checkpoint,
            )
            _import(source, selection, settings, work, as_json=as_json)


def _unknown_format() -> NoReturn:
    raise click.UsageError("the file's extension does not tell its format; say --format csv, tsv or jsonl")


def _identity(settings: Settings, layout: _Layout, selection: Selection, rejects: Path | None) -> dict[str, object]:
    """What makes an import another one, so that it does not go on where a different one stopped."""
    return {
        "url": settings.url,
        # A deployment made anew at the same address has lost what was imported, and has another key.
        "deployment": hashlib.sha256((settings.service_key or "").encode()).hexdigest()[:16],
        "layout": asdict(layout),
        "where": [[each.column, each.operator, each.value, each.number is None] for each in selection.conditions],
        "columns": asdict(selection.columns),
        "rejects": str(rejects.resolve()) if rejects else None,
    }


def _poster(client: httpx.Client) -> Post:
    def post(operations: list[dict[str, object]]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = call(client, "POST", "/v1/batch", body={"operations": operations})["results"]
        return results

    return post


def _columns(
    *,
    user: str,
    item: str,
    type_constant: str | None,
    type_column: str | None,
    reaction_constant: str | None,
    reaction_column: str | None,
    time_column: str | None,
    time_format: str,
) -> Columns:
    if type_constant is not None and type_column is not None:
        raise click.UsageError("--type and --type-column exclude each other")
    if reaction_constant is not None and reaction_column is not None:
        raise click.UsageError("--reaction and --reaction-column exclude each other")
    if type_constant is None and type_column is None:
        type_column = "item_type"
    return Columns(
        user=user,
        item=item,
        type_column=type_column,
        type_constant=type_constant,
        reaction_column=reaction_column,
        reaction_constant=reaction_constant,
        time=time_column,
        time_form=time_format,
    )


@contextlib.contextmanager
def _opened(file: Path, layout: _Layout, selection: Selection) -> Iterator[_Input]:
    """The file's rows. Bytes that are no UTF-8 pass as lone surrogates, so that only their rows are refused."""
    piped = str(file) == "-"
    raw = sys.stdin.buffer if piped else file.open("rb")
    with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        rows = _rows(text, layout, selection)
        try:
            yield _Input(rows, raw.tell, file.stat().st_size) if not piped else _Input(rows, lambda: 0, None)
        except ColumnError as error:
            raise click.UsageError(str(error)) from error


def _rows(text: Iterable[str], layout: _Layout, selection: Selection) -> Iterator[Record | Reject]:
    if layout.form == "jsonl":
        return read_json_lines(text)
    if layout.delimiter is not None and len(layout.delimiter) != 1:
        raise click.UsageError("--delimiter takes one character")
    wanted = selection.columns.names() + [condition.column for condition in selection.conditions]
    return read_csv(text, layout.delimiter or _DELIMITERS[layout.form], wanted)


def _show_dry_run(source: _Input, selection: Selection, *, as_json: bool) -> None:
    """What an import would send: totals, and the first few operations."""
    tally, sample = Tally(), list[dict[str, object]]()
    for chunk in chunks(source.rows, selection, source.position):
        tally.add(chunk.read, chunk.matched, chunk.rejects)
        sample += [operation.body for operation in chunk.operations[: _SAMPLE - len(sample)]]
    lines = [json.dumps(body) for body in sample]
    lines.append(f"{_rows_text(tally)}; nothing was sent")
    _end(tally, {**_rows_answer(tally), "sample": sample}, "\n".join(lines), as_json=as_json)


def _import(source: _Input, selection: Selection, settings: Settings, work: Import, *, as_json: bool) -> None:
    tally = work.resume()
    resumed, before = tally.read, tally.liked + tally.already
    if resumed:
        click.echo(f"going on after row {resumed:,}, where the import before was interrupted", err=True)
    started = time.monotonic()
    try:
        work.run(source.rows, selection, source.position, tally)
    except (ApiError, KeyboardInterrupt):
        click.echo(f"\nstopped after row {tally.read:,}; {_go_on(work)}", err=True)
        raise
    seconds = time.monotonic() - started
    per_second = (tally.liked + tally.already - before) / max(seconds, 1e-3)
    answer = {
        "url": settings.url,
        **_rows_answer(tally),
        "liked": tally.liked,
        "already": tally.already,
        "resumed_at": resumed,
        "seconds": round(seconds, 3),
        "likes_per_second": round(per_second, 1),
    }
    text = (
        f"{_rows_text(tally)}\n{tally.liked:,} liked, {tally.already:,} already there; "
        f"{seconds:.1f} s, {per_second:,.0f} likes/s"
    )
    _end(tally, answer, text, as_json=as_json)


def _go_on(work: Import) -> str:
    if work.checkpoint is None:
        return "give the command again: what is there already is not added twice"
    return "the same command goes on from there"


def _rows_answer(tally: Tally) -> dict[str, object]:
    shown = [
        {"line": reject.line, "code": reject.code, "message": reject.message, "field": reject.field}
        for reject in tally.shown
    ]
    return {"read": tally.read, "matched": tally.matched, "rejected": tally.rejected, "rejects": shown}


def _rows_text(tally: Tally) -> str:
    return f"{tally.read:,} rows read, {tally.matched:,} matched, {tally.rejected:,} rejected"


def _end(tally: Tally, answer: dict[str, object], text: str, *, as_json: bool) -> None:
    """Prints the summary, and the first bad rows; exits with 1 if there are any."""
    for reject in tally.shown:
        click.echo(f"line {reject.line}: {_reject_text(reject)}", err=True)
    if tally.rejected > len(tally.shown):
        click.echo(f"and {tally.rejected - len(tally.shown):,} more (--rejects FILE writes all)", err=True)
    show(answer, text, as_json=as_json)
    if tally.rejected:
        click.get_current_context().exit(1)


def _reject_text(reject: Reject) -> str:
    where = f" (field {reject.field})" if reject.field else ""
    return f"{reject.code}: {reject.message}{where}"
