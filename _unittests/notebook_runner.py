"""Write the notebook of a page, run a notebook with the Python of somebody else."""

import json
import sys

import nbclient
from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
from sphinx_gallery.notebook import jupyter_notebook
from sphinx_gallery.py_source_parser import split_code_and_text_blocks


def notebook_of(page):
    """Return the notebook of the script of a page, as sphinx-gallery writes it."""
    _, blocks = split_code_and_text_blocks(str(page))
    settings = {**DEFAULT_GALLERY_CONF, "src_dir": ""}
    return jupyter_notebook(blocks, settings, str(page.parent))


def run_notebook(notebook, python, folder, monkeypatch):
    """Execute a notebook in a folder, with the kernel of another environment."""
    kernels = folder.parent / "jupyter" / "kernels" / "reader"
    kernels.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "reader", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(folder.parent / "jupyter"))
    assert sys.executable != str(python)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="reader",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
