"""`stoker instances` and `stoker instance`: the machines that run jobs."""

from collections.abc import Iterable

import click

from stoker.cli import moment, screen
from stoker.cli.command import F, Session, command, group, json_option, pass_session
from stoker.cli.fleet import money
from stoker.cli.fleet_watch import now_of
from stoker.cli.run import confirm
from stoker.client.client import Json
from stoker.core import phrase

HEADERS = ("NAME", "STATUS", "FLEET", "JOBS", "FREE CPU", "FREE MEMORY", "FREE GPU", "SINCE", "MESSAGE")
SSH, HOST_AT = "ssh", 3
SPARE = ("SINCE", "FLEET", "JOBS", "MESSAGE")
NONE = "There are no instances; `stoker up` makes one of this machine."


@command(
    "instances",
    short_help="List the machines that run jobs.",
    example="""
    stoker instances
    stoker instances local-9c41ab
    stoker instances --json | jq '.[].free.cpu'
    """,
)
@click.argument("instance", metavar="[NAME]", required=False)
@json_option
@pass_session
def instances(session: Session, instance: str | None, as_json: bool) -> None:
    """List the machines that run jobs and what is free on them, or show one."""
    if instance:
        _show(session, instance, as_json)
    else:
        _list(session, None, False, as_json)


@group(
    "instance",
    short_help="Machines: list, get, cordon, drain, trust, delete.",
    example="""
    stoker instance list --fleet cloud
    stoker instance drain dummy-9c41ab --deadline 10m
    stoker instance uncordon local-9c41ab
    """,
)
def instance() -> None:
    """The machines that run jobs."""


def name_argument(function: F) -> F:
    return click.argument("name", metavar="NAME")(function)


@instance.command("list", example="stoker instance list --fleet cloud --all --json")
@click.option("--fleet", metavar="NAME", help="Only of this fleet.")
@click.option("-a", "--all", "every", is_flag=True, help="Also those that are gone.")
@json_option
@pass_session
def list_(session: Session, fleet: str | None, every: bool, as_json: bool) -> None:
    """List them, and what is free on them."""
    _list(session, fleet, every, as_json)


@instance.command("get", example="stoker instance get local-9c41ab")
@name_argument
@json_option
@pass_session
def get(session: Session, name: str, as_json: bool) -> None:
    """Show one: what it is, what it costs, and the jobs on it."""
    _show(session, name, as_json)


@instance.command("cordon", example="stoker instance cordon local-9c41ab")
@name_argument
@json_option
@pass_session
def cordon(session: Session, name: str, as_json: bool) -> None:
    """Place no new jobs on it; those that are there stay."""
    _done(session, name, "cordon", None, as_json, "takes no new jobs")


@instance.command("uncordon", example="stoker instance uncordon local-9c41ab")
@name_argument
@json_option
@pass_session
def uncordon(session: Session, name: str, as_json: bool) -> None:
    """Let it take jobs again; a drain is called off."""
    _done(session, name, "uncordon", None, as_json, "takes jobs")


@instance.command("drain", example="stoker instance drain dummy-9c41ab --deadline 10m")
@name_argument
@click.option("--deadline", metavar="TIME", default="1h", help="Interrupt what still runs then; off: wait. 1h.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def drain(session: Session, name: str, deadline: str, yes: bool, as_json: bool) -> None:
    """Place no new jobs on it, and let it go when the last one has ended."""
    confirm(f"Drain {name}? It goes when its jobs have ended{_within(deadline)}.", yes)
    _done(session, name, "drain", {"deadline": deadline}, as_json, "drains")


@instance.command("delete", example="stoker instance delete dummy-9c41ab --force")
@name_argument
@click.option("--force", is_flag=True, help="Interrupt what runs on it; take a lost host of yours for gone.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def delete(session: Session, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Destroy the machine; of a host of yours, what Stoker runs on it."""
    confirm(f"Delete {name}{' with what runs on it' if force else ''}?", yes)
    one = session.client.ask("DELETE", session.client.at("instances", name), query={"force": force}).json()
    _told(one, as_json, "leaves")


@instance.command(
    "trust",
    example="""
    stoker instance trust ssh-9c41ab                   # shows it, and asks where it has changed
    stoker instance trust ssh-9c41ab --key SHA256:…    # this one alone, as the host itself tells it
    """,
)
@name_argument
@click.option("--key", metavar="SHA256:…", help="Take this one and no other, without a question.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def trust(session: Session, name: str, key: str | None, yes: bool, as_json: bool) -> None:
    """Show the host keys of a host of yours; take a changed one.

    The key that a host shows when it is met first is trusted from then on, and any other is refused until somebody says
    that the host was set up anew."""
    at = session.client.at("instances", name)
    known = session.client.get(f"{at}/keys")["items"]
    for one in [one for one in known if one["offered"] and key in (None, one["offered"])]:
        screen.note(f"{one['place']} was {one['fingerprint']} and is now {one['offered']}.")
        if key is None:
            confirm("Is that so because it was set up anew? Trust the new key?", yes)
        asked = {"place": one["place"], "fingerprint": one["offered"]}
        known = session.client.post(f"{at}/trust", asked)["items"]
    if as_json:
        screen.show_json(known)
        return
    for one in known:
        other = f"; now it shows {one['offered']}, which is refused" if one["offered"] else ""
        screen.out(f"{one['place']}  {one['fingerprint']}{other}")


def _within(deadline: str) -> str:
    return "" if deadline == "off" else f", or after {deadline}"


def _done(session: Session, name: str, act: str, body: Json | None, as_json: bool, done: str) -> None:
    one = session.client.post(session.client.at("instances", name, act), body)
    _told(one, as_json, done)


def _told(one: Json, as_json: bool, done: str) -> None:
    if as_json:
        screen.show_json(one)
        return
    ended = {"TERMINATED": "is gone", "TERMINATING": "leaves"}.get(one["status"], done)
    screen.out(f"{one['name']}  {ended}")


def _list(session: Session, fleet: str | None, every: bool, as_json: bool) -> None:
    client = session.client
    found = client.items(client.at("instances"), {"fleet": fleet, "finished": every or None})
    if as_json:
        screen.show_json_list(found)
        return
    rows = list(found)
    if rows:
        show_table(rows, session.now())
    else:
        screen.note(NONE)


def show_table(found: Iterable[Json], now: float) -> None:
    found = list(found)
    headers, rows = list(HEADERS), [list(_row(one, now)) for one in found]
    if any(one["backend"] == SSH for one in found):
        # People know hosts of theirs by the names that they gave them.
        headers.insert(HOST_AT, "HOST")
        for one, row in zip(found, rows, strict=True):
            row.insert(HOST_AT, one["location"] if one["backend"] == SSH else "")
    screen.out(screen.table(headers, rows, spare=SPARE))


def _show(session: Session, name: str, as_json: bool) -> None:
    one = session.client.get(session.client.at("instances", name))
    if as_json:
        screen.show_json(one)
        return
    now = session.now()
    rows = [*zip((header.lower() for header in HEADERS), _row(one, now), strict=True)]
    rows += [("id", one["id"]), ("blocks", f"{one['blocks'] - one['blocks_free']} of {one['blocks']} in use")]
    engine = "its container engine answers" if one["resources"]["docker"] else "no container engine answers its agent"
    rows += [("containers", engine if one["launched_at"] else "")]
    rows += [("health", one["health"] or "nothing is known to be wrong")]
    if one["offer"]:
        rows += [("offer", f"{one['offer']} at {one['backend']}/{one['location']}{' (spot)' if one['spot'] else ''}")]
    if one["price"]:
        rows += [("price", f"{money(one['price'])} an hour"), ("cost", f"{money(one['cost'])} so far")]
    if one["launched_at"]:
        rows += [("launched", moment.ago(one["launched_at"], now))]
    if one["location"] and not one["offer"]:
        rows += [("host", one["location"])]
    rows += [
        ("step" if not number else "", f"{step['step']}: {step['message'] or step['state']}")
        for number, step in enumerate(one["steps"])
    ]
    rows += [("job", f"{job['run']} {job['replica']}/{job['node']} {job['status']}") for job in one["tenants"]]
    if other := one["jobs"] - len(one["tenants"]):
        rows += [("", f"and {phrase.counted(other, 'job')} that you do not see here")]
    screen.out(screen.pairs(rows))


def _row(one: Json, now: float) -> tuple[object, ...]:
    has, free = one["resources"], one["free"]
    silent = ""
    if one["unreachable_since"]:
        silent = f"unreachable for {moment.span(now - moment.parse(one['unreachable_since']))}"
    cordoned = "takes no new jobs" if one["cordoned"] else ""
    if one["draining_until"] and one["status"] == "BUSY":
        cordoned = f"drains until {moment.clock(one['draining_until'])}"
    return (
        one["name"],
        one["status"],
        one["fleet"],
        one["jobs"],
        phrase.spare("cpu", free["cpu"], has["cpu"]).partition(" CPU")[0],
        phrase.spare("memory", free["memory_mb"], has["memory_mb"]).removesuffix(" of memory"),
        f"{free['gpus']:g} of {_gpus(has['gpus'])}" if has["gpus"] else "",
        moment.ago(one["since"], now),
        "; ".join(filter(None, (silent, cordoned, one["health"], one["message"], now_of(one)))),
    )


def _gpus(gpus: list[Json]) -> str:
    names = [gpu["name"] for gpu in gpus]
    return ", ".join(f"{names.count(name)}×{name}" for name in dict.fromkeys(names))
