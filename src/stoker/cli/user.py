"""`stoker user`: who may do what."""

import uuid
from urllib.parse import quote

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, group, json_option, pass_session
from stoker.cli.run import confirm
from stoker.client.client import Json


@group(
    "user",
    short_help="Users.",
    example="""
    stoker user me
    stoker user create ada && stoker token create --user ada
    stoker user set ada --admin
    """,
)
def user() -> None:
    """Users of the server. Their roles in projects are in `stoker project`."""


def show(found: list[Json], now: float) -> None:
    rows = [(one["name"], "admin" if one["admin"] else "", moment.ago(one["created_at"], now)) for one in found]
    screen.out(screen.table(("NAME", "ROLE", "CREATED"), rows))


@user.command("me", example="stoker user me --json")
@json_option
@pass_session
def me(session: Session, as_json: bool) -> None:
    """Say who you are to the server, and what you may do."""
    one = session.client.get("/api/users/me")
    if as_json:
        screen.show_json(one)
        return
    roles = ", ".join(f"{member['role']} of {member['project']}" for member in one["projects"])
    screen.out(
        screen.pairs(
            [
                ("name", one["name"]),
                ("server", "admin" if one["admin"] else ""),
                ("projects", roles),
                ("token ends", moment.clock(one["token_expires_at"])),
            ]
        )
    )


@user.command("list", example="stoker user list")
@json_option
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the users."""
    found = list(session.client.items("/api/users"))
    if as_json:
        screen.show_json(found)
    else:
        show(found, session.now())


@user.command("create", example="stoker user create ada")
@click.argument("name")
@click.option("--admin", is_flag=True, help="Of the whole server: every right in every project.")
@json_option
@pass_session
def create(session: Session, name: str, admin: bool, as_json: bool) -> None:
    """Create a user."""
    made = session.client.post("/api/users", {"name": name, "admin": admin}, key=str(uuid.uuid4()))
    if as_json:
        screen.show_json(made)
    else:
        screen.out(f"{made['name']}  created")
        screen.note(f"`stoker token create --user {name}` makes a token; `stoker project add {name}` lets them in.")


@user.command("set", example="stoker user set ada --no-admin")
@click.argument("name")
@click.option("--admin/--no-admin", required=True, help="Of the whole server.")
@json_option
@pass_session
def set_(session: Session, name: str, admin: bool, as_json: bool) -> None:
    """Change what a user may do."""
    changed = session.client.ask("PATCH", f"/api/users/{quote(name, safe='')}", body={"admin": admin}).json()
    if as_json:
        screen.show_json(changed)
    else:
        show([changed], session.now())


@user.command("delete", example="stoker user delete ada")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a user and their tokens."""
    confirm(f"Delete {name} and their tokens?", yes)
    session.client.ask("DELETE", f"/api/users/{quote(name, safe='')}")
    screen.out(f"{name}  deleted")
