"""A site's commands."""

from pathlib import Path
from typing import Annotated

import typer


def digest(
    app: Annotated[Path, typer.Argument(help="The app's folder: task.py, federation.toml and what else it has.")],
    files: Annotated[bool, typer.Option("--files", help="Name the files first that may run or be read there.")] = False,
) -> None:
    """Print an app's digest, by which a site allows it in its site.toml."""
    from hansa.appfiles import FEDERATION, app_digest, app_files

    found = app_files(app)
    for name in sorted(found) if files else []:
        typer.echo(f"{name}: {len(found[name]):,} bytes{', not in the digest' if name == FEDERATION else ''}")
    typer.echo(app_digest(found))


HERE = Path()

site = typer.Typer(help="A site of a consortium.", rich_markup_mode=None)


@site.callback()
def _commands() -> None:
    """Makes `up` a command of its own, and not all there is."""


@site.command("up")
def site_up(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Run the site: until Ctrl-C or SIGTERM."""
    from clients.up import up

    up(folder, typer.echo)


@site.command("join")
def site_join(
    kit: Annotated[Path, typer.Argument(help="The invitation kit that the consortium has sent.")],
    folder: Annotated[
        Path | None, typer.Argument(help="The site's new folder. [default: one of the site's name, here]")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="A proxy on the way to the server: http://user:password@proxy:3128")
    ] = None,
) -> None:
    """Join a consortium: make the site's keys, ask, and wait until it has approved. Ctrl-C is safe."""
    from clients.joining import join

    join(kit, folder, proxy, typer.echo)


@site.command("renew")
def site_renew(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Ask for the site's next certificate, and wait until it was granted. Ctrl-C is safe."""
    from clients.renewal import renew

    renew(folder, typer.echo)


@site.command("doctor")
def site_doctor(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Check all that a site needs: a line each, with the mend. Exit code 1 if something must be mended."""
    from clients.doctor import examine

    if not examine(folder, typer.echo):
        raise typer.Exit(1)


@site.command("agent-key")
def site_agent_key(
    name: Annotated[str, typer.Argument(help="The node whose agent gets it, or of several that share it.")],
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Make the key by which a node's agent is let in, or its next one; it is good for a year."""
    from clients.agents.command import make

    make(folder, name, typer.echo)


@site.command("agent")
def site_agent(
    head: Annotated[str, typer.Option(help="host:port, as [training] listen of site.toml has it.")],
    folder: Annotated[
        Path, typer.Option("--site", envvar="HANSA_SITE", help="The site's folder, which all nodes share.")
    ] = HERE,
    node: Annotated[str | None, typer.Option(help="This node's name. [default: that of the machine]")] = None,
    key: Annotated[
        str | None, typer.Option(help="Whose key it shows, of those in agents/. [default: the node's]")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="This node's, for the others. [default: the one by which it reaches the head]")
    ] = None,
    run: Annotated[str | None, typer.Option(help="The only run that it is for; it ends with it.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="Seconds without a head after which it ends. [default: it goes on]")
    ] = None,
) -> None:
    """Run a node's agent, which starts training processes there for the site: until Ctrl-C or SIGTERM."""
    from clients.agents.command import agent

    agent(folder, head, node, key, address, run, patience, typer.echo)


@site.command("slurm-script")
def site_slurm_script(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
    template: Annotated[bool, typer.Option("--template", help="The template instead, for one of your own.")] = False,
) -> None:
    """Print the batch script that a run's job would have; submits nothing."""
    from clients.slurm.checks import printed
    from clients.slurm.checks import template as own

    typer.echo(own() if template else printed(folder), nl=False)


budget = typer.Typer(help="Differential privacy: what is spent, and what a plan would cost.", rich_markup_mode=None)


@budget.command("show")
def budget_show(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Show what is spent and left of each data set, by run, and the hash of each ledger's newest entry."""
    from clients.budget import show

    show(folder, typer.echo)


@budget.command("verify")
def budget_verify(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Check each ledger from its first entry to its newest. Exit code 1 if one was changed or damaged."""
    from clients.budget import verify

    if not verify(folder, typer.echo):
        raise typer.Exit(1)


@budget.command("plan")
def budget_plan(
    app: Annotated[
        Path | None, typer.Argument(help="An app: what is not given below is taken from its federation.toml.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Of a site's training; groups, where they are the unit.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of the whole run: finds the noise for it.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over clip: finds what it costs.")] = None,
    delta: Annotated[float | None, typer.Option(help="Well below 1 / rows.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows that a step draws on average.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of a round: each row is drawn so often on average.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of a round; this or --epochs.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Of the run. Without: how many --epsilon buys with --noise-multiplier.")
    ] = None,
) -> None:
    """Tell the noise that an epsilon needs, the epsilon that a noise costs, or how many rounds both allow."""
    from clients.budgetplan import Wish, plan

    plan(app, Wish(rows, epsilon, noise_multiplier, delta, batch_size, epochs, steps, rounds), typer.echo)
