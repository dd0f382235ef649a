"""`stoker task cancel` and `retry`."""

from typing import Any
from uuid import uuid4

import click

from stoker.cli import screen
from stoker.cli.command import F, Session, command, json_option, pass_session
from stoker.cli.run import confirm
from stoker.cli.task_list import STATES
from stoker.cli.task_options import label_of
from stoker.client import task as tasks


def selection_options(function: F) -> F:
    for option in (
        click.argument("refs", metavar="[TASK]...", nargs=-1),
        click.option("--group", metavar="NAME", help="Those of this group."),
        click.option("--label", metavar="KEY=VALUE", multiple=True, help="Those with this label."),
        click.option("--state", type=click.Choice(STATES), multiple=True, help="Only those in this state."),
        click.option("--name", metavar="NAME", help="Only those of this name."),
        click.option("--all", "everything", is_flag=True, help="All of the project."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask; only --all asks."),
    ):
        function = option(function)
    return function


@command(
    "cancel",
    short_help="Cancel tasks.",
    example="""
    stoker task cancel 0199d4c2-7f3a
    stoker task cancel --group sweep
    stoker task cancel --group sweep --state available   # what runs already may end
    """,
)
@selection_options
@json_option
@pass_session
def cancel(session: Session, /, yes: bool, as_json: bool, **said: Any) -> None:
    """Cancel tasks, and with them all that wait for them. It is accepted at once: what runs is told to end, and has its
    grace period; `stoker task wait` waits until it has. What had ended already stays as it is.
    """
    told = tasks.cancel(session.client, _selected(session, said, yes, "Cancel"))
    if as_json:
        screen.show_json(told)
        return
    parts = [f"{told['cancelled']} cancelled"] if told["cancelled"] or not told["pending"] else []
    parts += [f"{told['pending']} running: their workers are being told"] if told["pending"] else []
    screen.out(", ".join(parts))


@command(
    "retry",
    short_help="Do again what did not succeed.",
    example="""
    stoker task retry --group sweep
    stoker task retry 0199d4c2-7f3a -y --json | jq -r '.ids[]'
    """,
)
@selection_options
@json_option
@pass_session
def retry(session: Session, /, yes: bool, as_json: bool, **said: Any) -> None:
    """Do again what failed or was cancelled, as new tasks with the same edges among them; the old ones stay. Held tasks
    may be claimed again.
    """
    told = tasks.retry(session.client, _selected(session, said, yes, "Do again"), key=str(uuid4()))
    if as_json:
        screen.show_json(told)
        return
    released = f", {told['released']} held ones may be claimed again" if told["released"] else ""
    screen.out(f"{told['count']} done again{released}")
    for old, new in list(told["ids"].items())[:20] if said["refs"] else ():
        screen.out(f"{old}  again as {new}")


def _selected(session: Session, said: dict[str, Any], yes: bool, what: str) -> dict[str, object]:
    refs, everything = said["refs"], said["everything"]
    selection: dict[str, object] = {
        "group": said["group"],
        "labels": dict(map(label_of, said["label"])) or None,
        "state": list(said["state"]) or None,
        "name": said["name"],
    }
    selection = {name: value for name, value in selection.items() if value is not None}
    if everything and (refs or selection):
        raise click.UsageError("--all means every task; name nothing else.")
    if not everything and not refs and not selection:
        raise click.UsageError("Name tasks, a --group, a --label, or say --all.")
    if everything:
        confirm(f"{what} all tasks of project {session.config.project}?", yes)
        return {"all": True}
    return selection | ({"ids": [tasks.found(session.client, ref) for ref in refs]} if refs else {})
