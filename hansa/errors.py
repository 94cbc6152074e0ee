"""What may go wrong, told apart by whose mistake it is: the user's, the run's, or (any other exception) ours."""


class UserError(ValueError):
    """Bad input: says what, where and how to mend it, one line a problem. The `hansa` command ends with code 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RunFailed(RuntimeError):
    """A run that ended in a failure state, the model so far saved. The `hansa` command ends with code 1."""
