"""Run a page several times in fresh processes and count how often its verdicts agree.

python _benchmarks/repeat_page.py [--times 10] [PAGE [OPTION ...]]
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ortmeter.evidence import Claim
from ortmeter.study.records import load_records

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "_doc" / "examples" / "performance" / "plot_op_gemm2_cuda.py"


def verdicts(page: str, options: list[str]) -> Mapping[str, str]:
    """Run a page once; return the verdict of each of its comparisons and predictions."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - a page of this project
            [sys.executable, page, *options, "--record"],
            env={**os.environ, "ORTMETER_RESULTS": folder},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (record,) = load_records(folder=folder)
    claims = (*(record.answer.claims if record.answer else ()), *record.claims)
    return {case(claim): claim.verdict for claim in claims if claim.verdict != "fact"}


def case(claim: Claim) -> str:
    """Name what a claim is about."""
    _, about, baseline = claim.question
    pair = f"{about} over {baseline}" if baseline else about
    return ", ".join([pair, *(f"{name} {value}" for name, value in claim.where.items())])


def main() -> None:
    """Print, for each case, its verdicts and how often each one came."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("page", nargs="?", default=str(PAGE))
    args, options = parser.parse_known_args()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for _ in range(args.times):
        for name, word in verdicts(args.page, options).items():
            counts[name][word] += 1
    agreement = 0
    for name, words in counts.items():
        agreement += words.most_common(1)[0][1]
        print(f"{name}: " + ", ".join(f"{word} {n}" for word, n in words.most_common()))
    total = sum(words.total() for words in counts.values())
    print(f"{agreement} of {total} verdicts are the most common one of their case")


if __name__ == "__main__":
    main()
