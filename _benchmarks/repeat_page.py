"""Run a page several times in fresh processes and count how often its verdicts agree.

python _benchmarks/repeat_page.py [--runs 10] [PAGE [OPTION ...]]
"""

import argparse
import collections
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "_doc" / "examples" / "performance" / "plot_op_gemm2_cuda.py"


def sentences(output: str) -> list[str]:
    """Sentences of the conclusion, which starts after ``Measured on``."""
    conclusion = output[output.index("Measured on") :].replace("\n  ", " ")
    return [line[2:] for line in conclusion.splitlines() if line.startswith("- ")]


def verdict(sentence: str) -> tuple[str, str]:
    """Case and claim of a sentence, without the numbers of the run."""
    case, _, claim = sentence.rpartition(": ")
    claim = re.sub(r" \(\d[^)]*\)|\d+\.\d+ times ", "", claim)
    return case or "prediction", claim


def main() -> None:
    """Print, for each sentence, its verdicts and how often each one came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("page", nargs="?", default=str(PAGE))
    args, options = parser.parse_known_args()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for _ in range(args.runs):
        done = subprocess.run(  # noqa: S603 - a page of this project
            [sys.executable, args.page, *options], stdout=subprocess.PIPE, text=True, check=True
        )
        for case, word in map(verdict, sentences(done.stdout)):
            counts[case][word] += 1
    agreement = 0
    for case, words in counts.items():
        agreement += words.most_common(1)[0][1]
        print(f"{case}: " + ", ".join(f"{word} {n}" for word, n in words.most_common()))
    total = sum(words.total() for words in counts.values())
    print(f"{agreement} of {total} verdicts are the most common one of their case")


if __name__ == "__main__":
    main()
