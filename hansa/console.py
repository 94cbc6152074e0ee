"""Lines on a terminal."""

from rich.console import Console


def say(console: Console, line: str) -> None:
    """Prints a line as it is: brackets and numbers in it mean nothing, and its length is the terminal's matter."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
