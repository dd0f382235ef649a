"""`stoker shim` and `stoker runner`: the agents, started by the server and by the shim, never by people."""

from pathlib import Path

import click

from stoker.cli.command import command

DIRECTORY = click.Path(path_type=Path, file_okay=False)


@command("shim", short_help="Run the agent of a host.", hidden=True, example="stoker shim --home DIR")
@click.option("--home", "directory", required=True, type=DIRECTORY, help="Where it keeps its tasks.")
def shim(directory: Path) -> None:
    """Run the agent of a host."""
    from stoker.shim.start import serve

    serve(directory)


@command("runner", short_help="Run the agent of one job.", hidden=True, example="stoker runner DIR")
@click.argument("directory", type=DIRECTORY)
def runner(directory: Path) -> None:
    """Run the agent of one job."""
    from stoker.runner.main import cold_start

    cold_start(directory)
