"""The list of the public names, of which autosummary writes the pages."""

import csv
import importlib
import inspect
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

import ortmeter
from ortmeter import study
from ortmeter.errors import MissingDependencyError

#: Public modules by what a reader wants to do.
MODULES = Path(__file__).parents[1] / "api" / "modules.csv"

logger = logging.getLogger(__name__)
# What pages import from: names of other modules too.
_SHORT = (ortmeter, study)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; autosummary writes a page for each name of its list."""
    app.connect("builder-inited", list_names, priority=400)
    app.connect("env-updated", register_short_names)
    app.connect("autodoc-process-docstring", describe_data)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


@cache
def public_modules() -> dict[str, list[str]]:
    """List the full names of the public modules, by group."""
    groups = defaultdict(list)
    with MODULES.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            groups[row["group"]].append(f"ortmeter.{row['module']}")
    return groups


def public_names(module: ModuleType) -> list[str]:
    """List the names that a module exports, but for those of another public module, sorted.

    The names of a private module or of a submodule belong to the module that exports them.
    """
    return sorted(name for name in module.__all__ if _owner(module, name) == module.__name__)


def list_names(app: Sphinx) -> None:
    """Write the list of the public names, and what the pages of autosummary need of them."""
    folder = Path(app.srcdir, "api", "generated")
    folder.mkdir(parents=True, exist_ok=True)
    groups = {group: [*filter(_is_importable, names)] for group, names in public_modules().items()}
    members = {
        f"{module}.{name}": getattr(importlib.import_module(module), name)
        for module in itertools.chain(*groups.values())
        for name in public_names(importlib.import_module(module))
    }
    app.config.autosummary_context = {
        "root": [name.rpartition(".")[2] for name in members if _is_of_root(members, name)],
        # What a private base has is documented with the class.
        "inheriting": [
            name
            for name, value in members.items()
            if inspect.isclass(value)
            and any(base.__name__.startswith("_") for base in value.__mro__)
        ],
    }
    # Two names that differ by capitals are two files everywhere.
    lower = Counter(map(str.lower, members))
    app.config.autosummary_filename_map = {
        name: f"{name}-class"
        for name, value in members.items()
        if lower[name.lower()] > 1 and inspect.isclass(value)
    }
    write_if_changed(folder / "names.rst", names_list(groups))


def _is_of_root(members: Mapping[str, object], name: str) -> bool:
    short = name.rpartition(".")[2]
    return short in ortmeter.__all__ and getattr(ortmeter, short) is members[name]


@cache
def _is_importable(module: str) -> bool:
    """Whether a build has what a module needs: that of one page installs no more than it needs."""
    try:
        found = importlib.import_module(module)
        [getattr(found, name) for name in found.__all__]  # some are imported by their first use
    except MissingDependencyError as error:
        logger.info("%s is not in the reference: %s", module, error)
        return False
    return True


def names_list(groups: dict[str, list[str]]) -> str:
    """Write the modules by group, each with its names."""
    blocks = ["All names\n========="]
    for group, modules in groups.items():
        blocks.append(f"{group}\n{'-' * len(group)}")
        for module in modules:
            names = public_names(importlib.import_module(module))
            listed = "\n".join(f"   {name}" for name in names)
            blocks += [
                f".. rubric:: {module}",
                f".. automodule:: {module}\n   :no-members:",
                f".. currentmodule:: {module}",
                f".. autosummary::\n   :nosignatures:\n   :toctree:\n\n{listed}",
            ]
    return "\n\n".join(blocks) + "\n"


def describe_data(
    _app: Sphinx, what: str, name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Give a constant the comment of the module that defines it, instead of that of its type."""
    if what != "data":
        return
    public, _, own = name.rpartition(".")
    defining = (m for m in sorted(sys.modules) if f"{m}.".startswith(f"{public}."))
    comments = (ModuleAnalyzer.for_module(module).find_attr_docs() for module in defining)
    lines[:] = next((found["", own] for found in comments if ("", own) in found), lines)


def register_short_names(_app: Sphinx, env: BuildEnvironment) -> None:
    """Make ``ortmeter.measure`` a second name of the object documented in its module.

    The code of the pages imports from the package and from ``ortmeter.study``: their names become
    links.
    """
    objects = env.domains["py"].objects  # type: ignore[attr-defined]
    modules = [module for names in public_modules().values() for module in names]
    for short in [f"{one.__name__}.{name}" for one in _SHORT for name in one.__all__]:
        documented = (objects.get(f"{module}.{short.rpartition('.')[2]}") for module in modules)
        # `ortmeter.timing.bench` is a module too, and `ortmeter.machine.environment` one already.
        entry = next((found for found in documented if found and found.objtype != "module"), None)
        if entry and short not in objects:
            objects[short] = entry._replace(aliased=True)


def _owner(module: ModuleType, name: str) -> str:
    """Find the public module that defines a name, else the first one that exports it."""
    defined_in = getattr(getattr(module, name), "__module__", None) or module.__name__
    known = [full for names in public_modules().values() for full in names]
    parents = [full for full in known if f"{defined_in}.".startswith(f"{full}.")]
    modules = map(importlib.import_module, filter(_is_importable, known))
    exporting = (other.__name__ for other in modules if name in other.__all__)
    return max(parents, key=len) if parents else next(exporting, module.__name__)


def write_if_changed(file: Path, text: str) -> None:
    """Write a generated file, unless Sphinx would read the same again."""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
