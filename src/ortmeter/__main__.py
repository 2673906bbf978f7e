"""``python -m ortmeter`` is the command ``ortmeter``."""

import sys

from ortmeter.cli import main

if __name__ == "__main__":
    sys.exit(main())
