"""Order in which more than two operands are multiplied."""

from collections.abc import Sequence
from typing import TypeAlias

from ortmeter.einsum._sizes import Sizes
from ortmeter.errors import InvalidArgumentError

__all__ = ["Path", "find_path", "list_products"]

Path: TypeAlias = Sequence[Sequence[int]]


def find_path(inputs: Sequence[str], output: str, sizes: Sizes) -> Path:
    """Find in which order to multiply operands.

    Parameters
    ----------
    inputs : sequence of str
        Letters of each operand.
    output : str
        Letters of the result.
    sizes : Sizes
        Size of every letter.

    Returns
    -------
    sequence of tuple of int
        Positions of the operands to multiply, which are removed from the list while their product
        is appended: the path of opt_einsum.
    """
    if len(inputs) <= 2:  # noqa: PLR2004 - there is nothing to choose
        return [tuple(range(len(inputs)))]
    import opt_einsum

    # The dimensions of an ellipsis are digits, which opt_einsum does not take.
    symbols = {x: opt_einsum.get_symbol(i) for i, x in enumerate(sizes.of)}
    terms = ["".join(symbols[x] for x in letters) for letters in (*inputs, output)]
    shapes = [tuple(sizes.weight(x) for x in letters) for letters in inputs]
    equation = f"{','.join(terms[:-1])}->{terms[-1]}"
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True)
    return [tuple(group) for group in path]


def list_products(path: Path, count: int) -> list[tuple[int, int]]:
    """List the products of a path.

    Parameters
    ----------
    path : sequence of sequence of int
        Positions of the operands to multiply.
    count : int
        Number of operands.

    Returns
    -------
    list of (int, int)
        What each product multiplies: operands are numbered from 0, results from *count*.

    Raises
    ------
    InvalidArgumentError
        The path does not use every operand, or a position does not exist.

    Examples
    --------
    >>> list_products([(1, 2), (0, 1)], 3)
    [(1, 2), (0, 3)]
    """
    products: list[tuple[int, int]] = []
    numbers = list(range(count))
    for group in path:
        if not group or len(set(group)) < len(group) or not set(group) <= set(range(len(numbers))):
            raise InvalidArgumentError(
                f"path={list(path)!r}: {tuple(group)} does not pick distinct operands among "
                f"{len(numbers)}"
            )
        first, *others = (numbers[i] for i in group)
        numbers = [number for i, number in enumerate(numbers) if i not in group]
        for other in others:
            products.append((first, other))
            first = count + len(products) - 1
        numbers.append(first)
    if len(numbers) != 1:
        raise InvalidArgumentError(
            f"path={list(path)!r} leaves {len(numbers)} operands out of {count}. Accepted: it "
            "leaves one"
        )
    return products
