"""Which pages run: those that sphinx-gallery has no result of.

It skips a page while the source is the one that ran last without error, whose hash is in a file
``.md5``. The results also depend on the package, on the versions, on the machine and on the records
of the page: where one of them changed, that file is removed before sphinx-gallery looks for it.
"""

import hashlib
import json
import os
import re
from importlib.metadata import distributions
from pathlib import Path

from sphinx.application import Sphinx
from sphinx_gallery.utils import get_md5sum

from _ext.provider import chosen_provider
from ortmeter.machine.environment import environment


def forget_results(app: Sphinx) -> None:
    """Remove the hashes of the pages that must run, and what was generated for those that went."""
    conf = app.config.sphinx_gallery_conf
    examples, gallery = (Path(app.srcdir, conf[f"{x}_dirs"][0]) for x in ("examples", "gallery"))
    for copy in sorted(gallery.rglob("plot_*.py")):
        source = examples / copy.relative_to(gallery)
        if not source.exists():
            images = copy.parent.glob(f"images/**/sphx_glr_{copy.stem}_*")
            for file in [*copy.parent.glob(f"{copy.stem}.*"), *images]:
                file.unlink()
    kept, context = gallery / "context.json", build_context(Path(app.config.ortmeter_root))
    is_new = not kept.exists() or kept.read_text(encoding="utf-8") != context
    for ran in gallery.rglob("plot_*.py.md5"):
        page = ran.name.removesuffix(".py.md5")
        source = examples / ran.relative_to(gallery).with_name(f"{page}.py")
        if not re.search(conf["filename_pattern"], str(source)):
            continue
        records = Path(app.srcdir, "results").glob(f"*/{page}--*.json")
        is_older = any(record.stat().st_mtime > ran.stat().st_mtime for record in records)
        # A page that fails keeps the hash of an older text, to which somebody may go back.
        if is_new or is_older or ran.read_text(encoding="utf-8") != get_md5sum(source, mode="t"):
            ran.unlink()
    if not conf["run_stale_examples"]:  # all pages run
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(context, encoding="utf-8")


def build_context(root: Path) -> str:
    """Describe what all pages of a build share: sources, versions, machine, provider and mode."""
    digest = hashlib.sha256()
    for file in sorted(Path(root, "src").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    machine = environment()
    facts = {
        "src": digest.hexdigest(),
        "packages": sorted({f"{found.name} {found.version}" for found in distributions()}),
        "machine": [machine.identity, machine.python, *map(str, machine.gpus)],
        "provider": str(chosen_provider()),
        "fast": os.environ.get("ORTMETER_FAST", ""),
    }
    return json.dumps(facts, indent=1)
