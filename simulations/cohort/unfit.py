"""What cannot be computed in a stack of sites."""


class Unfit(Exception):  # it is no error: the plain loop does it
    """The plain loop has to do it; the text says why and ends a sentence."""
