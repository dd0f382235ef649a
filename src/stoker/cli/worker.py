"""`stoker worker`: runs tasks of the swarm on this machine."""

import os
from pathlib import Path

import click

from stoker.cli.command import Session, command, pass_session
from stoker.core.errors import UserError

EXAMPLE = """
stoker worker                                       # all CPUs, memory and GPUs of this machine
stoker worker --cpus 4 --memory 8GB --gpus 0
stoker worker --resource licence=2 --group sweep-7  # two licences, and tasks of this group only
stoker worker --time-limit 4h --idle-timeout 10m    # in a batch system: gone in time
"""


@command("worker", short_help="Run tasks on this machine.", example=EXAMPLE)
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="How many CPUs its tasks may use.")
@click.option("--memory", metavar="SIZE", help="How much memory, such as 8GB.")
@click.option("--gpus", metavar="N|INDICES", help="How many GPUs, or which ones: 0,3. [default: all that are found]")
@click.option("--resource", "resources", metavar="NAME=N", multiple=True, help="Something else that it has so many of.")
@click.option("--label", "--labels", "labels", metavar="NAME=VALUE", multiple=True, help="Shown in `stoker workers`.")
@click.option("--group", metavar="NAME", help="Take tasks of this group only.")
@click.option("--name", metavar="NAME", help="What it is called. [default: the name of this machine]")
@click.option("--time-limit", metavar="TIME", help="End within this time, such as 4h: tasks that take longer are left.")
@click.option("--idle-timeout", metavar="TIME", help="End when there was nothing to do for so long.")
@click.option("--drain-timeout", metavar="TIME", help="Stop tasks that still run so long after it was told to end.")
@click.option("--pin", is_flag=True, help="Give each task CPUs of its own.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), help="Where it keeps its files.")
@pass_session
def worker(
    session: Session,
    cpus: float | None,
    memory: str | None,
    gpus: str | None,
    resources: tuple[str, ...],
    labels: tuple[str, ...],
    group: str | None,
    name: str | None,
    time_limit: str | None,
    idle_timeout: str | None,
    drain_timeout: str | None,
    pin: bool,
    directory: Path | None,
) -> None:
    """Run tasks on this machine, until it is told to end.

    It takes tasks that fit its resources from the server, and only dials out. Told to end (Ctrl-C, SIGTERM) it takes
    nothing more and waits for what runs; told again, it stops what runs."""
    config = session.config
    if not config.url:
        raise UserError(
            "No server is configured.",
            hint="`stoker up` starts one on this machine; `stoker config set url URL` names another.",
            code="not_configured",
        )
    # Before anything large is loaded: the keeper stays as small as it is now.
    from stoker.worker.keeper import keep

    guard = keep()

    from stoker.runner.version import VERSION
    from stoker.worker import host
    from stoker.worker.main import run
    from stoker.worker.settings import Settings

    visible = host.gpus(gpus, os.environ)
    if gpus is not None and not visible:
        # Those that it has are for others.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    settings = Settings(
        url=config.url,
        token=config.token,
        project=config.project,
        name=name or host.name(),
        directory=(directory or config.home / "worker").absolute(),
        total=host.total(cpus, memory, len(visible), _amounts(resources)),
        gpus=visible,
        cpus=tuple(sorted(os.sched_getaffinity(0))) if pin else (),
        group=group,
        labels=_pairs(labels, "--label"),
        time_limit_s=_duration(time_limit, "--time-limit"),
        idle_timeout_s=_duration(idle_timeout, "--idle-timeout"),
        drain_timeout_s=_duration(drain_timeout, "--drain-timeout"),
    )
    run(settings, guard, VERSION)


def _amounts(resources: tuple[str, ...]) -> dict[str, float]:
    try:
        return {name: float(amount) for name, amount in _pairs(resources, "--resource").items()}
    except ValueError:
        raise UserError(f"--resource {' '.join(resources)}: expected numbers.", hint="For example licence=2.") from None


def _pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    for word in words:
        if "=" not in word or word.startswith("="):
            raise UserError(f"{option} {word}: expected NAME=VALUE.")
    return dict(word.split("=", 1) for word in words)


def _duration(text: str | None, option: str) -> float | None:
    from stoker.wire.duration import HINT_OFF, parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}.", hint=HINT_OFF) from None
