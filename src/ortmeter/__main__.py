"""``python -m ortmeter`` is the command ``ortmeter``."""

import sys

from ortmeter.cli import main

sys.exit(main())
