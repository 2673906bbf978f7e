"""The command ``ortmeter``: measure, profile and compare a model without writing code.

Each command is a module with ``register``, which declares its options, and ``run``, which fills a
report; it is imported when it is asked for.
"""

from ortmeter.cli.execution import main

__all__ = ["main"]
