"""What may go wrong, told apart by whose mistake it is: the user's, the run's, or (any other exception) ours."""


class UserError(ValueError):
    """Bad input: says what, where and how to mend it, one line a problem. The `hansa` command ends with code 2.

    What cannot be printed is written as Python writes it: a file that somebody sent must not steer the terminal.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = tuple("\n".join(map(_printable, problem.split("\n"))) for problem in problems)
        super().__init__("\n".join(self.problems))


def reason(error: OSError) -> str:
    """Why the system did not do it, for a line that has said which file or address."""
    return (error.strerror or str(error)).lower()


class RunFailed(RuntimeError):
    """A run that ended in a failure state, the model so far saved. The `hansa` command ends with code 1."""


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
