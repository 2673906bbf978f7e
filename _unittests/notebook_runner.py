"""Run a notebook with the Python of somebody else."""

import json
import sys

import nbclient


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
