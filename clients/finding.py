"""What `hansa site doctor` finds: a line each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    good: bool
    line: str  # what is well; or what is wrong, and the mend. No secret, and nothing that stands in the rows

    def __str__(self) -> str:
        return f"{'ok' if self.good else 'mend':<5} {self.line}"


def ok(line: str) -> Finding:
    """It is well."""
    return Finding(True, line)


def mend(line: str) -> Finding:
    """It must be mended."""
    return Finding(False, line)
