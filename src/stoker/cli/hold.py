"""Runs that wait for a person: `hold`, `release`."""

from stoker.cli import screen
from stoker.cli.command import Session, command, json_option, pass_session, run_argument, suggesting


@command(
    "hold",
    short_help="Keep a run that waits from starting.",
    example="""
    stoker hold train-1
    stoker release train-1
    """,
)
@run_argument
@json_option
@pass_session
def hold(session: Session, run: str, as_json: bool) -> None:
    """Keep a run that waits from starting until it is released.

    Of a run with many jobs those are held that have not started; where none waits any more it is refused.
    """
    _steer(session, run, "hold", "is held", as_json)


@command(
    "release",
    short_help="Let a held run start.",
    example="""
    stoker release train-1
    """,
)
@run_argument
@json_option
@pass_session
def release(session: Session, run: str, as_json: bool) -> None:
    """Let a held run start as soon as there is room."""
    _steer(session, run, "release", "is released", as_json)


def _steer(session: Session, run: str, act: str, said: str, as_json: bool) -> None:
    from stoker.client import run as runs

    with suggesting(session, run):
        told = runs.steer(session.client, run, act)
    if as_json:
        screen.show_json(told)
    else:
        screen.out(f"{told['name']} {said}")
