"""One page per public module, with the pages of the gallery that use it."""

import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import ortmeter
from _ext.tables import reference
from ortmeter import pages

#: Public modules by what a reader wants to do. One that does not exist has no page.
MODULES = {
    "Measure": (
        "timing",
        "timing.bench",
        "timing.candidates",
        "timing.control",
        "timing.cold",
        "timing.load",
        "timing.optimized",
        "timing.pauses",
        "timing.percentiles",
        "timing.releases",
        "timing.serving",
        "timing.threads",
        "profiling",
        "profiling.kinds",
        "profiling.scheduling",
        "runtime.costs",
        "timing.peaks",
        "sweep",
    ),
    "Compare results": (
        "discrepancy",
        "discrepancy.bounds",
        "discrepancy.quantized",
        "discrepancy.summation",
        "dtypes",
    ),
    "Run models": tuple(
        f"runtime.{name}"
        for name in (
            "loading",
            "feeds",
            "feed_files",
            "sessions",
            "placement",
            "iobinding",
            "models",
            "precision",
        )
    ),
    "Transform and execute": ("einsum", "evaluator", "evaluator.ranges", "backend"),
    "Know the machine": ("runtime.environment", "runtime.fitness", "runtime.providers"),
    "Conclude and show": ("timing.claims", "plotting", "report"),
    "Write a page": ("args", "pages", "errors"),
}

_HEADING = "Pages that use this module"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension, after the gallery whose pages are listed."""
    app.connect("builder-inited", write_module_pages, priority=800)
    app.connect("env-updated", register_short_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def public_modules() -> dict[str, list[str]]:
    """List the full names of the public modules that exist, by group."""
    groups = {
        group: [
            f"ortmeter.{name}" for name in names if importlib.util.find_spec(f"ortmeter.{name}")
        ]
        for group, names in MODULES.items()
    }
    return {group: names for group, names in groups.items() if names}


def public_names(module: ModuleType) -> list[str]:
    """List the names that a module exports, but for those of another public module, sorted.

    The names of a private module or of a submodule belong to the module that exports them.
    """
    return sorted(name for name in module.__all__ if _owner(module, name) == module.__name__)


def module_page(name: str, uses: dict[str, list[str]]) -> str:
    """Write the page of a module.

    Parameters
    ----------
    name : str
        Full name of the module.
    uses : dict of str to list of str
        For each of its names, the pages of the gallery that use it, relative to the folder of
        ``conf.py``.

    Returns
    -------
    str
        reStructuredText.
    """
    names = public_names(importlib.import_module(name))
    blocks = [
        f"{name}\n{'=' * len(name)}",
        f".. automodule:: {name}\n   :no-members:",
        f".. currentmodule:: {name}",
        _directive("autosummary", names, ":nosignatures:"),
        *(_member(name, item, uses.get(item, [])) for item in names),
    ]
    pages = sorted(set().union(*uses.values()))
    if pages:
        blocks += [f"{_HEADING}\n{'-' * len(_HEADING)}", _directive("minigallery", pages)]
    return "\n\n".join(blocks) + "\n"


def write_module_pages(app: Sphinx) -> None:
    """Write the pages of the modules and their index, after the pages of the gallery ran."""
    folder = Path(app.srcdir, "api", "generated")
    folder.mkdir(parents=True, exist_ok=True)
    groups = public_modules()
    modules = [name for names in groups.values() for name in names]
    texts = {f"{name}.rst": module_page(name, _pages_using(app, name)) for name in modules}
    for old in folder.glob("*.rst"):
        if old.name not in texts:
            old.unlink()
    texts["index.inc"] = modules_index(groups)
    for file, text in texts.items():
        _write_if_changed(folder / file, text)


def modules_index(groups: dict[str, list[str]]) -> str:
    """Write the tables of the modules and the table of contents that holds their pages."""
    tables = [
        f"{group}\n{'-' * len(group)}\n\n{_directive('autosummary', names)}"
        for group, names in groups.items()
    ]
    entries = [f"   generated/{name}" for names in groups.values() for name in names]
    toctree = ".. toctree::\n   :hidden:\n\n" + "\n".join(entries)
    return "\n\n".join([*tables, toctree]) + "\n"


def register_short_names(_app: Sphinx, env: BuildEnvironment) -> None:
    """Make ``ortmeter.measure`` a second name of the object documented in its module.

    The code of the pages imports from the package, and from ``ortmeter.pages``: their names become
    links.
    """
    objects = env.domains["py"].objects  # type: ignore[attr-defined]
    modules = [module for names in public_modules().values() for module in names]
    for short in [f"{one.__name__}.{name}" for one in (ortmeter, pages) for name in one.__all__]:
        documented = (f"{module}.{short.rpartition('.')[2]}" for module in modules)
        entry = next((objects[full] for full in documented if full in objects), None)
        # `ortmeter.runtime.environment` is already the name of a module.
        if entry and short not in objects:
            objects[short] = entry._replace(aliased=True)


def _member(module: str, name: str, pages: list[str]) -> str:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        # What a private base has is documented with the class, what a mapping does is known.
        private = any(base.__name__.startswith("_") for base in value.__mro__)
        members = "\n   :members:" + "\n   :inherited-members: Mapping" * private
    else:
        # The text of a table is its source, which is one click away.
        kind, members = ("autofunction", "") if callable(value) else ("autodata", "\n   :no-value:")
    used = ", ".join(reference(Path(page).stem) for page in pages)
    blocks = [f"{name}\n{'-' * len(name)}", f".. {kind}:: {name}{members}"]
    return "\n\n".join([*blocks, f"Used in {used}."] if used else blocks)


def _pages_using(app: Sphinx, module: str) -> dict[str, list[str]]:
    references = _read_references(app)
    names = public_names(importlib.import_module(module))
    starts = {name: (f"{module}.{name}.", f"ortmeter.{name}.") for name in names}
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
    exporting = (full for full in known if name in importlib.import_module(full).__all__)
    return max(parents, key=len) if parents else next(exporting, module.__name__)


def _write_if_changed(file: Path, text: str) -> None:
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
