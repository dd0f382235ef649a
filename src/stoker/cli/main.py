"""`stoker`: finds the command, and says in a sentence what went wrong. Nothing heavy may be imported here."""

import errno
import os
import sys
from types import TracebackType
from typing import Final

import click

from stoker.cli import exits, screen
from stoker.cli.command import Lazy, Session, flags, show_examples
from stoker.core.errors import StokerError, UserError

HERE: Final = "stoker.cli"
TABLE: Final = {
    "Start": {
        "up": (f"{HERE}.server", "Start a server on this machine."),
        "down": (f"{HERE}.server", "Stop the server of this machine."),
        "server": (f"{HERE}.server", "Run a server, as a service manager would."),
    },
    "Run": {
        "apply": (f"{HERE}.apply", "Run, or make, what a configuration file describes."),
        "run": (f"{HERE}.apply", "Run a command."),
        "stop": (f"{HERE}.run", "Stop runs."),
        "retry": (f"{HERE}.run", "Do again what failed of a run."),
        "wait": (f"{HERE}.run", "Wait until runs have finished."),
        "hold": (f"{HERE}.hold", "Keep a run that waits from starting."),
        "release": (f"{HERE}.hold", "Let a held run start."),
        "trigger": (f"{HERE}.schedule", "Start a round of a scheduled run now."),
        "pause": (f"{HERE}.schedule", "Let a schedule trigger nothing."),
        "resume": (f"{HERE}.schedule", "Let a paused schedule go on."),
        "delete": (f"{HERE}.run", "Delete finished runs and their logs."),
    },
    "Look": {
        "ps": (f"{HERE}.ps", "List runs."),
        "get": (f"{HERE}.run", "Show one run."),
        "logs": (f"{HERE}.log", "Show what a run has written."),
        "events": (f"{HERE}.event", "Tell what happened, to a run or in the project."),
        "why": (f"{HERE}.run", "Explain why a run is where it is."),
        "instances": (f"{HERE}.instance", "List the machines that run jobs."),
        "offers": (f"{HERE}.offer", "List the machines that could be launched."),
        "fleets": (f"{HERE}.fleet", "List the groups of machines."),
        "volumes": (f"{HERE}.volume", "List the places for data that outlives jobs."),
    },
    "Swarm": {
        "task": (f"{HERE}.task", "Many small commands for workers: add, map, load, wait, cancel."),
        "worker": (f"{HERE}.worker", "Run tasks on this machine."),
        "workers": (f"{HERE}.workers", "List the workers that run tasks."),
    },
    "Machines": {
        "fleet": (f"{HERE}.fleet", "Groups of machines: list, get, delete."),
        "volume": (f"{HERE}.volume", "Places for data that outlives jobs: list, get, delete."),
        "instance": (f"{HERE}.instance", "Machines: list, get, cordon, drain, trust, delete."),
    },
    "Set up": {
        "config": (f"{HERE}.config", "Show or set which server you talk to."),
        "project": (f"{HERE}.project", "Projects and their members."),
        "user": (f"{HERE}.user", "Users."),
        "token": (f"{HERE}.token", "Tokens, by which the server knows you."),
        "bundle": (f"{HERE}.bundle", "Make the agents' bundle, or show where it is."),
        "dummy": (f"{HERE}.dummy", "Machines to try things on, and every way to lose them."),
        "completion": (f"{HERE}.completion", "Print the completion script of your shell."),
    },
    "": {
        "shim": (f"{HERE}.agent", "Run the agent of a host."),
        "runner": (f"{HERE}.agent", "Run the agent of one job."),
    },
}
EXAMPLES: Final = """
stoker up -d                        # a server on this machine, in the background
stoker run -- echo hello            # a command, with its log on the screen
stoker apply -f examples/hello.yaml # what a file describes
stoker ps -a                        # what there is and was
"""


class Root(Lazy):
    def invoke(self, ctx: click.Context) -> object:
        """Whoever reads us may stop reading (`stoker logs x | head`); that is no error, and nothing is said."""
        try:
            told: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is left in the buffer must not fail once more while Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(exits.READER_GONE) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise UserError("It cannot be written: there is no space left.", code="no_space") from None
        return told

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        show_examples(EXAMPLES, formatter)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        screen.out(f"stoker {version('stoker')}")
        ctx.exit()


cli = Root(
    name="stoker",
    help="Runs your workloads on machines and never loses one.",
    table=TABLE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        *flags(hidden=False),
        click.Option(["--version"], is_flag=True, expose_value=False, callback=_version, help="Show the version."),
    ],
)


def main(args: list[str] | None = None) -> None:
    sys.excepthook = _unexpected
    # A caller may have closed them (`>&-`); what is said then reaches nobody, and is no mistake.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as we live
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """The exit code."""
    try:
        told = cli.main(args=args, prog_name="stoker", standalone_mode=False, obj=Session())
        return told if isinstance(told, int) else exits.OK
    except click.exceptions.Abort:
        return exits.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        screen.out(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            screen.complain(error.format_message(), f"`{error.ctx.command_path} --help` tells how it is used.")
        else:
            screen.complain(error.format_message())
        return error.exit_code
    except StokerError as error:
        if os.environ.get("STOKER_DEBUG"):
            raise
        screen.complain(error.sentence, error.hint)
        return exits.FAILED


def _unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The last resort: a sentence instead of a traceback. Python itself then exits with 1, or as interrupted."""
    if issubclass(kind, KeyboardInterrupt):
        return
    if os.environ.get("STOKER_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    screen.complain(
        f"This is a mistake in stoker itself: {kind.__name__}: {error}".rstrip(".: ") + ".",
        "With STOKER_DEBUG=1 it says where; please report it.",
    )


if __name__ == "__main__":
    main()
