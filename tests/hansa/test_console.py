"""What a line is on a terminal."""

import io

from rich.console import Console

from hansa.console import say


def test_a_line_comes_as_it_is_whatever_its_brackets_and_length() -> None:
    out, line = io.StringIO(), f"runs/[red]/[/]: 3 of 4 sites{' more' * 40}"
    say(Console(file=out, width=40, force_terminal=True), line)
    assert out.getvalue() == f"{line}\n"
