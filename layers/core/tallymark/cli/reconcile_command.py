"""`tallymark reconcile`: asks a stack's reconciler, piece by piece, and tells what it found.

The one command that does not go through the API: it invokes the function, with the rights of the shell.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tallymark.cli.connection import state_folder
from tallymark.cli.full_run import Invoke, ReconcilerFailed, Run, ask_again, event_of, pieces
from tallymark.cli.options import show

_READ_TIMEOUT_S = 910  # the function's own limit is 900 s

_WHY = {
    "moving": "it changed while it was looked at",
    "pending": "likes are on their way through the stream or the parked queue",
    "unindexed": "its index does not show the latest likes yet",
}


@click.command("reconcile")
@click.option("--item", nargs=2, metavar="ITEM_TYPE ITEM_ID", help="Recount one item.")
@click.option("--all", "every", is_flag=True, help="Recount every item.")
@click.option("--repair", is_flag=True, help="Correct what is proven wrong.")
@click.option("--from", "cursor", help="Go on with --all where a run ended that failed.")
@click.option("--stack", default="tallymark", show_default=True, envvar="TALLYMARK_STACK", help="The stack's name.")
@click.option(
    "--endpoint-url", envvar="AWS_ENDPOINT_URL", help="Of an emulator; the running local stack's if there is one."
)
@click.option("--aws", "on_aws", is_flag=True, help="The stack in the shell's AWS account, though a local stack runs.")
@click.option("--state-home", envvar="XDG_STATE_HOME", type=click.Path(path_type=Path), hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reconcile_command(
    item: tuple[str, str] | None,
    every: bool,
    repair: bool,
    cursor: str | None,
    stack: str,
    endpoint_url: str | None,
    on_aws: bool,
    state_home: Path | None,
    as_json: bool,
) -> None:
    """Compare counts with the likes that they come from.

    Without --item or --all it tells what the daily run found. Exits with 1 if a count is wrong, or could not be judged
    because it kept moving.
    """
    if item and every:
        raise click.UsageError("--item and --all exclude each other")
    if repair and not (item or every):
        raise click.UsageError("say what to repair: --item ITEM_TYPE ITEM_ID, or --all")
    endpoint = None if on_aws else endpoint_url or _local_endpoint(state_folder(state_home))
    if endpoint is None and not on_aws:
        click.echo("No stack runs on this machine (`make up` starts one): asking AWS.", err=True)
    invoke = invoker(stack, endpoint)
    if item:
        answer = invoke(event_of(*item, repair=repair))
        show(answer, _item_text(answer, repair), as_json=as_json)
        wrong = answer["verdict"] != "exact" and not answer.get("repaired")
    elif every:
        run = Run(cursor)
        failure = _run_all(run, invoke, repair)
        answer = {"checked": run.checked, "found": run.found, "open": run.open, "repair_refused": run.repair_refused}
        show(answer, _run_text(run, repair), as_json=as_json)
        if failure:
            raise click.ClickException(
                f"{failure.message}\nGo on with --from {run.cursor}" if run.cursor else failure.message
            )
        wrong = bool(run.open) or not all(found["repaired"] for found in run.found)
    else:
        answer = invoke({"report": True})
        show(answer, _report_text(answer), as_json=as_json)
        wrong = bool(answer.get("wrong") or answer.get("left_open"))
    if wrong:
        click.get_current_context().exit(1)


def _run_all(run: Run, invoke: Invoke, repair: bool) -> click.ClickException | None:
    """All pieces, from the run's cursor on; the failure that ended it, if one did."""
    try:
        for _ in pieces(run, invoke, repair=repair):
            wrong, moving = len(run.found), len(run.open)
            _progress(f"{run.checked:,} items checked, {wrong:,} counted wrong, {moving:,} still moving")
        ask_again(run, invoke, repair=repair)
    except click.ClickException as failure:
        return failure
    finally:
        _progress("")
    return None


# --- what is shown --------------------------------------------------------------------------------------


def _item_text(answer: Mapping[str, Any], repair: bool) -> str:
    name = f"{answer['item_type']} {answer['item_id']}"
    if answer["verdict"] == "exact":
        return f"{name}: exact, {sum(answer['counted'].values()):,}"
    if answer["verdict"] == "drift":
        return "\n".join([_found_text(answer), *_advice([answer], answer["repair_refused"], repair)])
    return f"{name}: not to be judged now, {_WHY[answer['verdict']]}; try again in a moment"


def _run_text(run: Run, repair: bool) -> str:
    head = f"{run.checked:,} items checked: {len(run.found):,} counted wrong"
    lines = [head + (f", {len(run.open):,} not judged" if run.open else "")]
    lines += [_found_text(found) for found in run.found]
    lines += [f"{entry['item_type']} {entry['item_id']}: not judged, {_WHY[entry['verdict']]}" for entry in run.open]
    return "\n".join(lines + _advice(run.found, run.repair_refused, repair))


def _advice(found: list[Any], refused: str | None, repair: bool) -> list[str]:
    if refused:
        return [f"Nothing was corrected: {refused}."]
    if all(entry["repaired"] for entry in found):
        return []
    if repair:
        return ["What is not said to be corrected changed in that moment, or was just corrected; run it again."]
    return ["Nothing was changed; --repair corrects the counts."]


def _found_text(found: Mapping[str, Any]) -> str:
    parts = [
        f"{reaction} counted {found['counted'].get(reaction, 0):,}, recorded {found['recorded'].get(reaction, 0):,}"
        for reaction in found["drift"]
    ]
    repaired = ", corrected now" if found["repaired"] else ""
    return f"{found['item_type']} {found['item_id']}: {'; '.join(parts)}; wrong since {found['since']}{repaired}"


def _report_text(run: Mapping[str, Any]) -> str:
    if not run:
        return "The daily run has not begun yet; --all recounts every item now."
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run["started_s"]))
    ended = "" if run.get("done_s") else ", not ended yet"
    lines = [
        f"Daily run of {begun}{ended}: {run.get('checked', 0):,} items checked, {run.get('unchanged', 0):,} unchanged "
        f"since they were found right, {run.get('wrong', 0):,} counted wrong, {run.get('left_open', 0):,} not judged"
    ]
    lines += [_found_text(found) for found in run.get("found", [])]
    if run.get("wrong", 0) > len(run.get("found", [])):
        lines.append("... and more; --all recounts every item now")
    return "\n".join(lines)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{text}", nl=False, err=True)
    elif text:
        click.echo(text, err=True)


# --- the function ---------------------------------------------------------------------------------------


def _local_endpoint(folder: Path) -> str | None:
    """Where the emulator of the running local stack answers."""
    try:
        return str(json.loads((folder / "local.json").read_bytes())["endpoint_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def invoker(stack: str, endpoint_url: str | None) -> Invoke:
    """Calls the reconciler of a stack, found by its outputs. ClickException if there is none."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    # An emulator takes any keys; on AWS they are the shell's.
    session = boto3.Session("test", "test", region_name="us-east-1") if endpoint_url else boto3.Session()
    quick = Config(connect_timeout=5, retries={"mode": "standard"})  # three tries: somebody waits
    patient = Config(read_timeout=_READ_TIMEOUT_S, retries={"total_max_attempts": 1})

    where = endpoint_url or "AWS"
    try:
        cloudformation = session.client("cloudformation", endpoint_url=endpoint_url, config=quick)
        outputs = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["Outputs"]
        name = next(o["OutputValue"] for o in outputs if o["OutputKey"] == "ReconcilerFunction")
        client = session.client("lambda", endpoint_url=endpoint_url, config=patient)
    except (BotoCoreError, ClientError, StopIteration, KeyError) as error:
        raise click.ClickException(f"no reconciler of a stack {stack} at {where}: {error}") from error

    def invoke(event: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = client.invoke(FunctionName=name, Payload=json.dumps(event).encode())
            body = json.loads(answer["Payload"].read())
        except (BotoCoreError, ClientError, ValueError) as error:
            raise ReconcilerFailed(f"the reconciler of {stack} at {where} cannot be asked: {error}") from error
        if answer.get("FunctionError"):
            raise ReconcilerFailed(f"the reconciler failed: {body.get('errorMessage', body)}")
        return dict(body)

    return invoke
