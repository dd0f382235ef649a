"""`stoker task`: many small commands, claimed by workers. Each part of it has a file of its own."""

from stoker.cli.command import group
from stoker.cli.task_act import cancel, retry
from stoker.cli.task_add import add, load, map_
from stoker.cli.task_list import get, list_
from stoker.cli.task_log import logs
from stoker.cli.task_stat import stats
from stoker.cli.task_top import top
from stoker.cli.task_tree import tree
from stoker.cli.task_wait import wait


@group(
    "task",
    short_help="Many small commands for workers: add, map, load, wait, cancel.",
    example="""
    stoker task add -- ./prepare.sh
    stoker task map --range 1..1000 --group sweep -- python train.py --seed {}
    stoker task wait --group sweep
    stoker worker                      # runs them, on as many machines as you like
    """,
)
def task() -> None:
    """Small commands by the thousand. They are kept by the server, wait for each other where you say so, and are run by
    whatever workers there are (`stoker worker`): none is lost, and none runs twice.

    A task is named by its id, by how its id begins, or by its name (then it is the latest of that name).
    """


for one in (add, map_, load, list_, get, tree, wait, logs, stats, top, cancel, retry):
    task.add_command(one)
