"""Mutation testing: change one thing in a module, and see whether its tests fail.

Mutants are drawn with a seed among all those of the packages. Each is written in a copy of the
project, then the tests of its module run, then, if none fails, its examples and the properties that
the documentation promises, then the tests of its package. A mutant that makes them hang is killed
too. The survivors are listed: each is a line that no test holds.

python _benchmarks/mutants.py [--packages timing,discrepancy] [--count 400] [--seed 0] [--workers 2]
"""

import ast
import copy
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import command

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "src",
    "_unittests",
    "_benchmarks",
    "_doc/_ext",
    "_doc/api",
    "_doc/results",
    "pyproject.toml",
)
EXAMPLES = "_unittests/test_api.py::test_examples_give_what_they_say[{}]"
LONGEST_S = 180  # the tests of a package take 30 s
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A change in a file: the rank of a node in its tree, and what the line becomes."""

    file: Path
    rank: int
    line: int
    before: str
    after: str


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk the expressions that run, neither annotations nor the text of messages."""
    for name, field in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "format_spec"}:
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from nodes(child)


def mutated(node: ast.AST) -> ast.AST | None:
    """Return a node that does something else, None when it stays."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            changed.ops = [SWAPS[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.AugAssign(op=operator) if (
            type(operator) in SWAPS
        ):
            changed.op = SWAPS[type(operator)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return changed.operand
        case ast.Constant(value=bool()):
            changed.value = not changed.value
        case ast.Constant(value=int() | float()):
            changed.value += 1
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            changed.func.id = CALLS[name]
        case ast.If() | ast.IfExp():
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
        case ast.Return(value=ast.expr()) if not isinstance(changed.value, ast.Constant):
            changed.value = ast.Constant(None)
        case _:
            return None
    return changed


def first_line(node: ast.AST) -> str:
    """Write a node on one line."""
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0]


def mutants(package: str) -> Iterator[Mutant]:
    """List the mutants of a package."""
    for file in sorted((ROOT / "src/ortmeter" / package).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for rank, node in enumerate(nodes(tree)):
            other = mutated(node)
            if other is not None:
                texts = first_line(node), first_line(other)
                yield Mutant(file.relative_to(ROOT), rank, getattr(node, "lineno", 0), *texts)


def written(mutant: Mutant) -> str:
    """Write the module of a mutant."""
    tree = ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))
    chosen = next(node for rank, node in enumerate(nodes(tree)) if rank == mutant.rank)
    other = mutated(chosen)

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST | None:
            return other if node is chosen else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def copy_project(folder: str) -> None:
    """Copy the project for this process, which works there."""
    own = Path(folder, str(os.getpid()))
    for name in COPIED:
        whole, target = ROOT / name, own / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, target)
    os.chdir(own)


def survives(mutant: Mutant) -> bool:
    """Run the tests of a mutant in the copy of this process."""
    original = mutant.file.read_bytes()
    package = Path("_unittests", mutant.file.parts[2])
    own = package / f"test_{mutant.file.stem}.py"
    module = ".".join(mutant.file.with_suffix("").parts[1:]).removesuffix(".__init__")
    steps = [[str(own)]] if own.exists() else []
    steps += [[EXAMPLES.format(module), "_unittests/test_invariants.py"], [str(package)]]
    try:
        mutant.file.write_text(written(mutant), encoding="utf-8")
        return all(map(passes, steps))
    finally:
        mutant.file.write_bytes(original)


def passes(tests: list[str]) -> bool:
    """Run tests until one fails."""
    called = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    called += ["-m", "not slow and not site and not browser"]
    own = {**os.environ, "PYTHONPATH": str(Path.cwd() / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    limits = {"capture_output": True, "timeout": LONGEST_S}
    try:
        return subprocess.run(called, check=False, env=own, **limits).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Draw mutants, run their tests, print those that survive and the share that is killed."""
    given = command.options(__doc__, packages="timing,discrepancy", count=400, seed=0, workers=2)
    packages = given.packages.split(",")
    every = [mutant for package in packages for mutant in mutants(package)]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))  # noqa: S311
    print(f"{len(drawn)} of {len(every)} mutants, seed {given.seed}")
    counts, survivors = Counter(mutant.file.parts[2] for mutant in drawn), Counter[str]()
    examples = [EXAMPLES.format(f"ortmeter.{package}") for package in packages]
    tests = [*examples, *(f"_unittests/{package}" for package in packages)]
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.Pool(given.workers, copy_project, (folder,)) as pool,
    ):
        if not pool.apply(passes, (tests,)):
            raise SystemExit("the tests fail without any mutant")
        for mutant, survived in zip(drawn, pool.imap(survives, drawn), strict=True):
            if survived:
                survivors[mutant.file.parts[2]] += 1
                print(f"{mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
    for package, count in counts.items():
        killed = count - survivors[package]
        print(f"{package}: {killed} of {count} killed, {killed / count:.1%}")
    print(f"killed: {1 - survivors.total() / len(drawn):.1%}")


if __name__ == "__main__":
    main()
