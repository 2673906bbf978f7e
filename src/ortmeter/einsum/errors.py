"""What an equation that cannot be read or computed raises."""

from ortmeter.errors import InvalidArgumentError

__all__ = ["EinsumError"]


class EinsumError(InvalidArgumentError):
    """An equation is not valid, or does not suit its operands.

    Parameters
    ----------
    message : str
        What is wrong, and what is accepted.
    equation : str
        The equation as it was given.
    start : int
        Position in the equation of the first wrong character.
    length : int
        How many characters are wrong.

    Examples
    --------
    >>> print(EinsumError("'?' is not a letter", "i?->i", 1))
    'i?->i': '?' is not a letter
      i?->i
       ^
    """

    def __init__(self, message: str, equation: str, start: int = 0, length: int = 1) -> None:
        caret = " " * start + "^" * max(length, 1)
        super().__init__(f"{equation!r}: {message}\n  {equation}\n  {caret}")
        self.equation = equation
        self.start = start
