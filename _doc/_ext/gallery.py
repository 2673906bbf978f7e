"""Settings of sphinx-gallery and the order of the pages."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

from sphinx.errors import ConfigError

#: Sections in the order of the site, and their pages in the order of reading, with a title for the
#: sidebar.
SECTIONS = {
    "faster_runs": {
        "plot_tune": "What to set",
        "plot_profiling": "Optimization levels",
        "plot_optimizers": "Graph optimizers",
        "plot_threads": "Threads and containers",
        "plot_op_gemm2_cuda": "Joining two Gemms",
        "plot_einsum_decomposition": "Decomposing an Einsum",
        "plot_python_cost": "Short runs from Python",
    },
    "start_memory_load": {
        "plot_first_result": "Slow starts",
        "plot_memory": "Memory",
        "plot_shapes": "Fixed or dynamic shapes",
        "plot_shared_weights": "Sharing weights",
        "plot_load": "Many requests",
    },
    "fewer_bits": {
        "plot_low_precision": "int8 and float16",
    },
    "language_models": {
        "plot_decoding": "Decoding with a cache",
        "plot_custom_backend_llama_102": "Fusions of a Llama",
    },
    "upgrades": {
        "plot_broken": "What a release broke",
        "plot_providers": "OpenVINO, CUDA or CPU",
    },
    "accuracy": {
        "plot_parallelized_reduction": "Outputs that change",
        "plot_layer_norm_discrepancies": "Swapping LayerNormalization",
    },
    "libraries": {
        "plot_torch_or_onnxruntime": "torch or ONNX Runtime",
        "plot_operators_torch": "Operator by operator",
        "plot_custom_backend_101": "torch.compile",
        "plot_trees": "Trees",
        "plot_kmeans_profiling": "KMeans",
    },
    "measuring": {"plot_sweep": "How many processes"},
}


def page_rank(path: str) -> tuple[int, str]:
    """Sort key of a page: its place on the site; unknown ones come last."""
    names, name = [*itertools.chain(*SECTIONS.values())], Path(path).stem
    return names.index(name) if name in names else len(names), name


def page_pattern(page: str, examples: Path) -> str:
    """Regular expression of the pages to run.

    Parameters
    ----------
    page : str
        Name of the only page to run, empty for all of them.
    examples : Path
        Folder of the pages.

    Raises
    ------
    ConfigError
        No page has this name.
    """
    if not page:
        return re.escape(os.sep) + "plot_"
    known = sorted(path.stem for path in examples.rglob("plot_*.py"))
    if page not in known:
        raise ConfigError(f"ORTMETER_PAGE={page!r} is not a page. Accepted: {', '.join(known)}")
    return re.escape(f"{os.sep}{page}.py") + "$"


def gallery_conf(doc: Path, build: Path) -> dict[str, Any]:
    """Settings of sphinx-gallery.

    Parameters
    ----------
    doc : Path
        Folder of ``conf.py``.
    build : Path
        Where reports go, outside the site.

    Returns
    -------
    dict
        Value of ``sphinx_gallery_conf``. Functions are given by name: Sphinx keeps the
        configuration between two builds only when it can be pickled.
    """
    page = os.environ.get("ORTMETER_PAGE", "")
    return {
        "examples_dirs": ["examples"],
        "gallery_dirs": ["auto_examples"],
        "subsection_order": [*(f"examples/{section}" for section in SECTIONS), "*"],
        "within_subsection_order": "_ext.gallery.page_rank",
        "minigallery_sort_order": "_ext.gallery.page_rank",
        "filename_pattern": page_pattern(page, doc / "examples"),
        # Whoever names a page wants it to run.
        "run_stale_examples": bool(page),
        "plot_gallery": os.environ.get("ORTMETER_PLOT", "1") != "0",
        "backreferences_dir": "api/generated",
        "doc_module": ("ortmeter",),
        "capture_repr": ("_repr_html_", "__repr__"),
        "ignore_repr_types": r"matplotlib\.",
        "image_srcset": ["2x"],
        "thumbnail_size": (560, 350),
        "recommender": {"enable": True, "n_examples": 3, "min_df": 1, "max_df": 1.0},
        "reset_modules": ("matplotlib", "_ext.resetting.reset", "_ext.progress.follow"),
        "reset_modules_order": "both",
        "remove_config_comments": True,
        "show_memory": False,
        "show_signature": False,
        # Its page asks for scripts of other sites.
        "write_computation_times": False,
        # All pages run and the report names every failure; the build fails at its end.
        "abort_on_example_error": False,
        "junit": str(build / "gallery-junit.xml"),
    }
