"""`stoker completion`: what the shell needs to complete commands, flags and names of runs."""

from typing import Final

import click

from stoker.cli import screen
from stoker.cli.command import command

HOW: Final = {
    "bash": 'eval "$(stoker completion bash)"          # in ~/.bashrc',
    "zsh": 'eval "$(stoker completion zsh)"           # in ~/.zshrc',
    "fish": "stoker completion fish | source           # in ~/.config/fish/config.fish",
}


@command("completion", short_help="Print the completion script of your shell.", example="\n".join(HOW.values()))
@click.argument("shell", type=click.Choice(list(HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes your shell complete commands, flags and names of runs."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    screen.out(made(ctx.find_root().command, {}, "stoker", "_STOKER_COMPLETE").source())
