"""`stoker token`: by which the server knows you."""

import uuid
from urllib.parse import quote

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, group, json_option, pass_session


@group(
    "token",
    short_help="Tokens, by which the server knows you.",
    example="""
    stoker token list
    stoker token create laptop --expires 30d
    stoker token create ci --user ada --only main
    stoker token revoke 0199d4c2-7f3e-7c1a-9b52-3d1f6a8e2b47
    """,
)
def token() -> None:
    """Tokens, by which the server knows you. It keeps only their hashes: each is shown once, when it is made."""


@token.command("list", example="stoker token list --json")
@json_option
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the tokens, without what is secret of them."""
    found = list(session.client.items("/api/tokens"))
    if as_json:
        screen.show_json(found)
        return
    now = session.now()
    rows = [
        (
            one["id"],
            one["name"],
            one["user"],
            one["project"] or "all",
            moment.ago(one["created_at"], now),
            moment.ago(one["used_at"], now) or "never",
            moment.clock(one["expires_at"]) or "never",
        )
        for one in found
    ]
    screen.out(screen.table(("ID", "NAME", "USER", "PROJECT", "CREATED", "USED", "EXPIRES"), rows))


@token.command("create", example="export STOKER_TOKEN=$(stoker token create laptop --expires 30d)")
@click.argument("name", default="token")
@click.option("--user", metavar="NAME", help="For somebody else; admins of the server may.")
@click.option("--only", metavar="PROJECT", help="It opens this project only.")
@click.option("--expires", metavar="TIME", help="After so long (12h, 30d); never, unless you say.")
@json_option
@pass_session
def create(session: Session, name: str, user: str | None, only: str | None, expires: str | None, as_json: bool) -> None:
    """Make a token and print it, once."""
    said = {"name": name, "user": user, "project": only, "expires_in": expires}
    body = {key: value for key, value in said.items() if value is not None}
    made = session.client.post("/api/tokens", body, key=str(uuid.uuid4()))
    if as_json:
        screen.show_json(made)
    else:
        screen.out(made["token"])
        screen.note("It is not shown again.")


@token.command("revoke", example="stoker token revoke 0199d4c2-7f3e-7c1a-9b52-3d1f6a8e2b47")
@click.argument("id")
@pass_session
def revoke(session: Session, id: str) -> None:
    """Make a token worthless, at once."""
    session.client.ask("DELETE", f"/api/tokens/{quote(id, safe='')}")
    screen.out(f"{id}  revoked")
