"""The extras of the package that a page needs, as its code tells.

``python extras.py plot_x.py`` prints them before anything is installed.
"""

import re
import sys
from pathlib import Path

_IMPORT = r"^\s*(?:import|from)"
#: Extras that few pages need, and the code that needs them.
_EXTRAS = {
    "learn": r"\b(?:lightgbm|sklearn|skl2onnx|threadpoolctl)\b",
    "rewrite": r"\b(?:runtime\.rewriting|ortmeter\.tuning)\b",
    "torch": rf"{_IMPORT} (?:torch|ortmeter\.(?:attribution|backend|evaluator|tuning))\b"
    r"|\bortmeter\.(?:Evaluator|observatory\.networks)\b",
    "transformers": rf"{_IMPORT} transformers\b",
}


def extras_of(script: str) -> str:
    """List what the page needs beside a runtime."""
    needed = (name for name, used in _EXTRAS.items() if re.search(used, script, flags=re.MULTILINE))
    return ",".join(["pages", *needed])


if __name__ == "__main__":
    print(extras_of(Path(sys.argv[1]).read_text(encoding="utf-8")))
