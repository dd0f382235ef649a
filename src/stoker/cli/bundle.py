"""`stoker bundle`: the agents as one tree of files, as it is sent to hosts and mounted into containers."""

from stoker.cli import screen
from stoker.cli.command import Session, command, json_option, pass_session

MB = 1_000_000


@command(
    "bundle",
    short_help="Make the agents' bundle, or show where it is.",
    example="""
    stoker bundle
    stoker bundle --json
    """,
)
@json_option
@pass_session
def bundle(session: Session, as_json: bool) -> None:
    """Make the agents' bundle, or show where it is.

    It is what a server sends to hosts and mounts into containers: the agents with a Python, libraries and a loader of
    their own, so that nothing has to be installed there. A server makes it by itself when it is needed first."""
    from stoker.bundle.place import find_or_build

    made = find_or_build(session.config.home, lambda what: screen.note(f"{what[0].upper()}{what[1:]}."))
    layers = [
        {"name": one.name, "sha256": one.sha256, "size_bytes": one.size_bytes, "archive": str(one.archive)}
        for one in made.layers
    ]
    if as_json:
        told = {"root": str(made.root), "digest": made.digest, "version": made.version}
        screen.show_json(told | {"size_bytes": made.size_bytes, "layers": layers})
        return
    screen.out(f"{made.root}\n{made.version}, {made.size_bytes / MB:.1f} MB to send, digest {made.digest}\n")
    rows = [(one.name, f"{one.size_bytes / MB:.1f} MB", one.archive) for one in made.layers]
    screen.out(screen.table(("LAYER", "SIZE", "ARCHIVE"), rows))
