"""One page per public name, with the pages of the gallery that use it."""

import importlib
import importlib.util
import inspect
import json
import sys
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

#: Public modules by what a reader wants to do. One that does not exist is left out.
MODULES = {
    "Run models": tuple(
        f"runtime.{name}"
        for name in (
            "loading",
            "feeds",
            "feed_files",
            "arrays",
            "sessions",
            "placement",
            "iobinding",
            "models",
            "precision",
            "patterns",
            "rewriting",
            "providers",
            "cpu",
        )
    ),
    "Know the machine": tuple(f"machine.{name}" for name in ("environment", "preflight", "peaks")),
    "Measure": (
        "timing",
        *(
            f"timing.{name}"
            for name in ("bench", "candidates", "drift", "percentiles", "runs", "statistics")
        ),
        "evidence",
    ),
    "Measure a workload": tuple(
        f"workloads.{name}"
        for name in ("startup", "optimized", "load", "serving", "pauses", "threads", "memory")
    ),
    "Tune": ("tuning",),
    "Profile": ("profiling", "profiling.kinds", "profiling.quantization"),
    "Compare results": (
        "discrepancy",
        "discrepancy.bounds",
        "discrepancy.quantized",
        "discrepancy.summation",
        "dtypes",
    ),
    "Know the operators": ("operators", "operators.costs", "operators.kinds"),
    "Compare releases": tuple(
        f"releases.{name}" for name in ("environments", "latency", "profiles")
    ),
    "Compare operators": tuple(
        f"observatory.{name}"
        for name in (
            "catalogue",
            "case",
            "reference",
            "bounds",
            "bits",
            "findings",
            "matrix",
            "torch_candidate",
            "torch_program",
            "networks",
            "verdicts",
            "accuracy",
            "edge_cases",
            "edges",
        )
    ),
    "Transform and execute": (
        "einsum",
        "evaluator",
        "attribution",
        "attribution.ranges",
        "attribution.search",
        "backend",
        "sweep",
    ),
    "Show": ("plotting", "plotting.axes", "cli.report"),
    "Write a page": (
        "study",
        *(f"study.{name}" for name in ("args", "claims", "records", "rendering", "writer")),
        "errors",
    ),
}

logger = logging.getLogger(__name__)
_HEADING = "Pages that use it"
# What pages import from: names of other modules too.
_SHORT = (ortmeter, study)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension, after the gallery whose pages are listed."""
    app.connect("builder-inited", write_pages, priority=800)
    app.connect("env-updated", register_short_names)
    app.connect("autodoc-process-docstring", describe_data)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def public_modules() -> dict[str, list[str]]:
    """List the full names of the public modules, by group."""
    return {group: [f"ortmeter.{name}" for name in names] for group, names in MODULES.items()}


def public_names(module: ModuleType) -> list[str]:
    """List the names that a module exports, but for those of another public module, sorted.

    The names of a private module or of a submodule belong to the module that exports them.
    """
    return sorted(name for name in module.__all__ if _owner(module, name) == module.__name__)


def name_page(module: str, name: str, uses: list[str]) -> str:
    """Write the page of a public name.

    Parameters
    ----------
    module : str
        Full name of its module.
    name : str
        The name.
    uses : list of str
        Pages of the gallery that use it, relative to the folder of ``conf.py``.

    Returns
    -------
    str
        reStructuredText.
    """
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        # What a private base has is documented with the class, what a mapping does is known.
        private = any(base.__name__.startswith("_") for base in value.__mro__)
        members = "\n   :members:" + "\n   :inherited-members: Mapping" * private
    else:
        # The text of a table is its source, which is one click away.
        kind, members = ("autofunction", "") if callable(value) else ("autodata", "\n   :no-value:")
    short = getattr(ortmeter, name, None) is value and name in ortmeter.__all__
    blocks = [
        f"{name}\n{'=' * len(name)}",
        f"``from {'ortmeter' if short else module} import {name}``",
        f".. currentmodule:: {module}",
        f".. {kind}:: {name}{members}",
    ]
    if uses:
        blocks += [f"{_HEADING}\n{'-' * len(_HEADING)}", _directive("minigallery", uses)]
    return "\n\n".join(blocks) + "\n"


def page_name(module: str, name: str) -> str:
    """Name the page of a public name; two that differ by capitals are two files everywhere."""
    alike = [x for x in public_names(importlib.import_module(module)) if x.lower() == name.lower()]
    return f"{module}.{name}" + ("-class" if len(alike) > 1 and name[0].isupper() else "")


def write_pages(app: Sphinx) -> None:
    """Write the pages of the public names and their index, after the pages of the gallery ran."""
    folder = Path(app.srcdir, "api", "generated")
    folder.mkdir(parents=True, exist_ok=True)
    groups = {group: [*filter(_is_importable, names)] for group, names in public_modules().items()}
    references = _read_references(app)
    texts = {
        f"{page_name(module, name)}.rst": name_page(module, name, pages)
        for modules in groups.values()
        for module in modules
        for name, pages in _pages_using(references, module).items()
    }
    for old in folder.glob("*.rst"):
        if old.name not in texts:
            old.unlink()
    texts["index.inc"] = names_index(groups)
    for file, text in texts.items():
        write_if_changed(folder / file, text)


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


def names_index(groups: dict[str, list[str]]) -> str:
    """Write the modules by group, each with its names; the pages of the names are its contents."""
    blocks = []
    for group, modules in groups.items():
        blocks.append(f"{group}\n{'-' * len(group)}")
        entries = []
        for module in modules:
            names = public_names(importlib.import_module(module))
            blocks += [
                f".. rubric:: {module}",
                f".. automodule:: {module}\n   :no-members:",
                f".. currentmodule:: {module}",
                _directive("autosummary", names, ":nosignatures:"),
            ]
            entries += [f"generated/{page_name(module, name)}" for name in names]
        blocks.append(_directive("toctree", entries, ":hidden:", f":caption: {group}"))
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
        documented = (f"{module}.{short.rpartition('.')[2]}" for module in modules)
        entry = next((objects[full] for full in documented if full in objects), None)
        # `ortmeter.machine.environment` is already the name of a module.
        if entry and short not in objects:
            objects[short] = entry._replace(aliased=True)


def _pages_using(references: dict[str, set[str]], module: str) -> dict[str, list[str]]:
    names = public_names(importlib.import_module(module))
    shorts = {one.__name__: set(one.__all__) for one in _SHORT}
    starts = {
        name: tuple(
            f"{full}.{name}." for full in (module, *(s for s in shorts if name in shorts[s]))
        )
        for name in names
    }
    uses = {
        name: [pages for key, pages in references.items() if f"{key}.".startswith(starts[name])]
        for name in names
    }
    return {name: sorted(set().union(*pages)) for name, pages in uses.items()}


def _read_references(app: Sphinx) -> dict[str, set[str]]:
    """Read which pages use each name, as sphinx-gallery found them."""
    conf, source = app.config.sphinx_gallery_conf, Path(app.srcdir).resolve()
    file = source / conf["backreferences_dir"] / "backreferences_all.json"
    return {
        name: {
            Path(folder, page).resolve().relative_to(source).as_posix() for page, folder, *_ in uses
        }
        for name, uses in json.loads(file.read_text(encoding="utf-8")).items()
    }


def _directive(name: str, lines: list[str], *options: str) -> str:
    indented = [f"   {line}" if line else "" for line in (*options, "", *lines)]
    return "\n".join([f".. {name}::", *indented])


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
