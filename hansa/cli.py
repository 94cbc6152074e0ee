"""The `hansa` command: subcommands come from the entry-point group `hansa.commands`, exit codes are decided in `main`.

An entry point names a function or a `typer.Typer`, and is imported only for help and when it is invoked. So a module
of commands imports typer and the standard library at its top, and what is heavy inside its functions.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer

import hansa
from hansa.choose import nearest, registered
from hansa.errors import RunFailed, UserError

GROUP = "hansa.commands"

# Exit codes; an exception that is nobody's declared failure is our bug, and Python's traceback ends with 1.
FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130


class Subcommands(typer.core.TyperGroup):
    """The commands that installed distributions registered: their names at once, their code when it is asked for."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self._points = registered(GROUP)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In alphabetical order."""
        return sorted(self._points)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Imports the command; an unknown name is a usage error that says what there is."""
        if cmd_name not in self._points:
            known = ", ".join(sorted(self._points))
            ctx.fail(f'there is no command "{cmd_name}"{nearest(cmd_name, self._points)} (commands: {known})')
        return as_command(cmd_name, self._points[cmd_name].load())


def as_command(name: str, loaded: Callable[..., None] | typer.Typer) -> click.Command:
    """What an entry point named, a function or a Typer of several, as one subcommand."""
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, plain_typer()
        loaded.command(name)(function)
    command = typer.main.get_command(loaded)
    command.name = name
    return command


def plain_typer(**settings: Any) -> typer.Typer:
    """Help and tracebacks as plain text, which reads the same in a terminal, a log and a pipe."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def show_version(wanted: bool) -> None:
    """Answers `--version`."""
    if wanted:
        typer.echo(f"hansa {hansa.__version__}")
        raise typer.Exit


def top(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning: one task, simulated on this machine or run on real sites."""


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as the user reads it: one line, without the place in our code."""
    typer.echo(f"warning: {message}", err=True)


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command in `args` (default: the process's own) and returns the exit code."""
    warnings.showwarning = show_warning
    try:
        app = plain_typer(cls=Subcommands, no_args_is_help=True)
        app.callback()(top)
        result = typer.main.get_command(app).main(args, prog_name="hansa", standalone_mode=False)
    except UserError as error:
        for problem in str(error).splitlines():
            typer.echo(f"error: {problem}", err=True)
        return USER_ERROR
    except RunFailed as failure:
        typer.echo(f"failed: {failure}", err=True)
        return FAILED
    except click.ClickException as error:
        error.show()
        return USER_ERROR
    except (KeyboardInterrupt, click.Abort):
        result = INTERRUPTED
    if result == INTERRUPTED:
        typer.echo("interrupted", err=True)
    return result if isinstance(result, int) else 0
