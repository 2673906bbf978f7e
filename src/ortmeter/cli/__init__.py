"""The command ``ortmeter``: measure, profile and compare a model without writing code.

``execution`` declares the command line, runs a command and turns its errors into one line, which
``terminal`` writes; ``options`` reads what several commands share.
Each command is a module with ``register``, which declares its options, and ``run``, which fills a
report; it is imported when it is asked for.
"""

from ortmeter.cli.execution import main

__all__ = ["main"]
