"""`stoker project`: who works together, and in which role."""

import uuid
from urllib.parse import quote

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, group, json_option, pass_session
from stoker.cli.run import confirm

ROLES = ("user", "manager", "admin")


@group(
    "project",
    short_help="Projects and their members.",
    example="""
    stoker project list
    stoker project create vision && stoker project use vision
    stoker project add ada --role manager
    """,
)
def project() -> None:
    """Projects and their members. Runs, logs and tokens of one project are out of reach of the others."""


@project.command("list", example="stoker project list --json")
@json_option
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the projects that you may see; the one you work in has a star."""
    found = list(session.client.items("/api/projects"))
    if as_json:
        screen.show_json(found)
        return
    here = session.config.project
    rows = [
        ("*" if one["name"] == here else "", one["name"], moment.ago(one["created_at"], session.now())) for one in found
    ]
    screen.out(screen.table(("", "NAME", "CREATED"), rows))


@project.command("create", example="stoker project create vision")
@click.argument("name")
@json_option
@pass_session
def create(session: Session, name: str, as_json: bool) -> None:
    """Create a project."""
    made = session.client.post("/api/projects", {"name": name}, key=str(uuid.uuid4()))
    if as_json:
        screen.show_json(made)
    else:
        screen.out(f"{name}  created")
        screen.note(f"`stoker project use {name}` makes it yours from now on.")


@project.command("use", example="stoker project use vision")
@click.argument("name")
@pass_session
def use(session: Session, name: str) -> None:
    """Work in this project from now on."""
    from stoker.cli.config import warn_of_variable
    from stoker.client.config import change

    session.client.get(f"/api/projects/{quote(name, safe='')}")
    change(session.config.path, project=name)
    screen.out(f"You work in {name} now.")
    warn_of_variable(session.config, "project")


@project.command("delete", example="stoker project delete vision")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a project."""
    confirm(f"Delete project {name}?", yes)
    session.client.ask("DELETE", f"/api/projects/{quote(name, safe='')}")
    screen.out(f"{name}  deleted")


@project.command("key", example="stoker project key | ssh root@gpu-1 'cat >> .ssh/authorized_keys'")
@json_option
@pass_session
def key(session: Session, as_json: bool) -> None:
    """Print the public key by which the server logs in to hosts whose fleet names no other."""
    told = session.client.get(session.client.at("key"))
    if as_json:
        screen.show_json(told)
    else:
        screen.out(told["public_key"])


@project.command("members", example="stoker project members --project vision")
@json_option
@pass_session
def members(session: Session, as_json: bool) -> None:
    """List who works in the project."""
    found = list(session.client.items(session.client.at("members")))
    if as_json:
        screen.show_json(found)
        return
    rows = [(one["user"], one["role"], moment.ago(one["added_at"], session.now())) for one in found]
    screen.out(screen.table(("USER", "ROLE", "ADDED"), rows))


@project.command("add", example="stoker project add ada --role manager")
@click.argument("user")
@click.option("--role", type=click.Choice(ROLES), default="user", help="user unless you say.")
@pass_session
def add(session: Session, user: str, role: str) -> None:
    """Let a user in, or give them another role."""
    session.client.ask("PUT", session.client.at("members", user), body={"role": role})
    screen.out(f"{user} is {role} of {session.config.project}.")


@project.command("remove", example="stoker project remove ada")
@click.argument("user")
@pass_session
def remove(session: Session, user: str) -> None:
    """Take a user out of the project."""
    session.client.ask("DELETE", session.client.at("members", user))
    screen.out(f"{user} is no member of {session.config.project} any more.")
