"""`stoker dummy`: the backend that is none, steered while it runs."""

from urllib.parse import quote

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, group, json_option, pass_session
from stoker.client.client import Json
from stoker.core import phrase

LIES = ("none", "forget", "fail", "stillborn")


@group(
    "dummy",
    short_help="Machines to try things on, and every way to lose them.",
    example="""
    stoker dummy offers
    stoker dummy machines
    stoker dummy preempt dummy-9c41ab --notice 30s
    stoker dummy set small --capacity 0
    """,
)
def dummy() -> None:
    """The dummy backend: machines that cost nothing, to try fleets and policies on.

    What it offers is in HOME/backends.yml; without the file there are a small kind of machine, a large one and one with
    GPUs. These commands change it while it runs, and do to its machines what a provider does.
    """


@dummy.command("offers", example="stoker dummy offers --json")
@json_option
@pass_session
def offers(session: Session, as_json: bool) -> None:
    """List what it offers, and how each kind of machine behaves."""
    _show_offers(session.client.get("/api/dummy/offers")["items"], as_json)


@dummy.command(
    "set",
    example="""
    stoker dummy set small --capacity 0
    stoker dummy set small --location here --spot --preempt-after 10m --preempt-notice 30s
    stoker dummy set large --launch-delay 1m --lie stillborn
    """,
)
@click.argument("offer")
@click.option("--location", metavar="NAME", help="Only there.")
@click.option("--spot/--on-demand", default=None, help="Only spot machines, or only those on demand.")
@click.option("--capacity", metavar="N|off", help="How many machines there are at once; off: without end.")
@click.option("--price", type=float, help="An hour.")
@click.option("--launch-delay", metavar="TIME", help="From the accepted launch until the machine is up.")
@click.option("--answer-delay", metavar="TIME", help="Until the provider answers a launch.")
@click.option("--destroy-delay", metavar="TIME", help="Until a destroyed machine is gone.")
@click.option("--preempt-after", metavar="TIME|off", help="How long a new spot machine is left.")
@click.option("--preempt-notice", metavar="TIME", help="How long before that it is said.")
@click.option(
    "--lie",
    type=click.Choice(LIES),
    help="forget: says that it launched and does not; fail: says that it failed and launches; "
    "stillborn: machines never come up.",
)
@json_option
@pass_session
def set_(
    session: Session, /, offer: str, location: str | None, spot: bool | None, as_json: bool, **said: str | float | None
) -> None:
    """Change how an offer behaves, until it is changed again or reset; machines that are there stay as they are."""
    given: Json = {name: value for name, value in said.items() if value is not None}
    if not given:
        raise click.UsageError("Nothing is to be changed: say what, for example --capacity 0.")
    if "capacity" in given:
        given["capacity"] = _capacity(given["capacity"])
    query = {"location": location, "spot": spot}
    path = f"/api/dummy/offers/{quote(offer, safe='')}"
    _show_offers(session.client.ask("PATCH", path, query=query, body=given).json()["items"], as_json)


@dummy.command("reset", example="stoker dummy reset")
@pass_session
def reset(session: Session) -> None:
    """Make all offers again what HOME/backends.yml says."""
    session.client.ask("DELETE", "/api/dummy/changes")
    screen.out("reset")


@dummy.command("machines", example="stoker dummy machines --json")
@json_option
@pass_session
def machines(session: Session, as_json: bool) -> None:
    """List its machines."""
    found = session.client.get("/api/dummy/machines")["items"]
    if as_json:
        screen.show_json(found)
        return
    headers = ("NAME", "STATUS", "OFFER", "LOCATION", "SPOT", "KIND", "IP", "JOBS", "CREATED")
    rows = [
        (
            one["name"],
            one["status"],
            one["offer"],
            one["location"],
            "spot" if one["spot"] else "",
            "real" if one["real"] else "simulated",
            one["ip"],
            "" if one["tasks"] is None else one["tasks"],
            moment.ago(one["created_at"], session.now()),
        )
        for one in found
    ]
    if rows:
        screen.out(screen.table(headers, rows))
    else:
        screen.note("There are no machines; a fleet with `backends: [dummy]` launches them.")


@dummy.command(
    "disks",
    example="""
    stoker dummy disks
    stoker dummy disks --provision-delay 30s
    stoker dummy disks --stuck          # only force detaches one
    """,
)
@click.option("--provision-delay", metavar="TIME", help="Until a new disk is there.")
@click.option("--detach-delay", metavar="TIME", help="Until one is detached.")
@click.option("--stuck/--free", default=None, help="Only force detaches one; or any word does.")
@click.option("--refuse/--sell", default=None, help="No new disk is made; or as many as anybody wants.")
@json_option
@pass_session
def disks(session: Session, /, as_json: bool, **said: str | bool | None) -> None:
    """List its disks, which are the volumes of kind dummy, and change how they behave."""
    given = {name: value for name, value in said.items() if value is not None}
    method, body = ("PATCH", given) if given else ("GET", None)
    found = session.client.ask(method, "/api/dummy/disks", body=body).json()
    if as_json:
        screen.show_json(found)
        return
    manner = found["behaviour"]
    told = [
        f"there after {manner['provision_delay']}" if manner["provision_delay"] != "0s" else "",
        f"detached after {manner['detach_delay']}" if manner["detach_delay"] != "0s" else "",
        "stuck in detaching" if manner["stuck"] else "",
        "none is sold" if manner["refuse"] else "",
    ]
    screen.note(f"Disks: {', '.join(one for one in told if one) or 'there and gone at once'}.")
    if found["items"]:
        rows = [(one["name"], one["status"], one["machine"]) for one in found["items"]]
        screen.out(screen.table(("NAME", "STATUS", "MACHINE"), rows))


@dummy.command("preempt", example="stoker dummy preempt dummy-9c41ab --notice 30s")
@click.argument("machine")
@click.option("--notice", default="0s", metavar="TIME", show_default=True, help="How long before that it is said.")
@pass_session
def preempt(session: Session, machine: str, notice: str) -> None:
    """Take a machine back, as a provider does with spot machines."""
    _do(session, machine, "preempt", {"notice": notice})
    screen.out(f"{machine}  preempted")


@dummy.command("vanish", example="stoker dummy vanish dummy-9c41ab")
@click.argument("machine")
@pass_session
def vanish(session: Session, machine: str) -> None:
    """Let a machine be gone without a word, with everything that runs on it."""
    _do(session, machine, "vanish")
    screen.out(f"{machine}  gone")


@dummy.command("hang", example="stoker dummy hang dummy-9c41ab")
@click.argument("machine")
@pass_session
def hang(session: Session, machine: str) -> None:
    """Let a machine stop answering; its jobs go on."""
    _do(session, machine, "hang")
    screen.out(f"{machine}  hangs")


@dummy.command("resume", example="stoker dummy resume dummy-9c41ab")
@click.argument("machine")
@pass_session
def resume(session: Session, machine: str) -> None:
    """Let a machine that hangs answer again."""
    _do(session, machine, "resume")
    screen.out(f"{machine}  answers")


def _do(session: Session, machine: str, what: str, body: Json | None = None) -> None:
    session.client.ask("POST", f"/api/dummy/machines/{quote(machine, safe='')}/{what}", body=body)


def _capacity(text: object) -> int | None:
    if text == "off":
        return None
    if isinstance(text, str) and text.isdecimal():
        return int(text)
    raise click.UsageError(f"--capacity is {text!r}: write a number of machines, or off.")


def _show_offers(found: list[Json], as_json: bool) -> None:
    if as_json:
        screen.show_json(found)
        return
    headers = ("OFFER", "LOCATION", "SPOT", "CPU", "MEMORY", "GPU", "PRICE", "MACHINES", "KIND", "BEHAVIOUR")
    rows = [
        (
            one["name"],
            one["location"],
            "spot" if one["spot"] else "",
            f"{one['resources']['cpu']:g}",
            phrase.bare("memory", one["resources"]["memory_mb"]),
            len(one["resources"]["gpus"]) or "",
            f"{one['price']:g}",
            one["machines"] if one["capacity"] is None else f"{one['machines']} of {one['capacity']}",
            "real" if one["real"] else "simulated",
            _behaviour(one),
        )
        for one in found
    ]
    if rows:
        screen.out(screen.table(headers, rows, spare=("KIND", "GPU", "MEMORY", "CPU")))
    else:
        screen.note("The dummy backend offers nothing; HOME/backends.yml says what it has.")


def _behaviour(one: Json) -> str:
    said = [
        f"up after {one['launch_delay']}" if one["launch_delay"] != "0s" else "",
        f"answers after {one['answer_delay']}" if one["answer_delay"] != "0s" else "",
        f"gone after {one['destroy_delay']}" if one["destroy_delay"] != "0s" else "",
        f"preempted after {one['preempt_after']}" if one["preempt_after"] != "off" else "",
        f"with {one['preempt_notice']} notice" if one["preempt_notice"] != "0s" else "",
        f"lies: {one['lie']}" if one["lie"] != "none" else "",
    ]
    return ", ".join(part for part in said if part)
