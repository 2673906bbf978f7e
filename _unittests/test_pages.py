"""Run the pages as their readers do, in fast mode: as a script and as a notebook."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import nbclient
import nbformat
import numpy as np
import pytest
from page_runner import EXAMPLES, run_page
from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
from sphinx_gallery.notebook import jupyter_notebook
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

import ortmeter
from ortmeter.timing import Comparison, Comparisons, Measurement

PAGES = sorted(EXAMPLES.rglob("plot_*.py"))
GEMM = EXAMPLES / "performance" / "plot_op_gemm2_cuda.py"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    monkeypatch.setenv("ORTMETER_PROVIDER", "cpu")


def run_script(page, folder, *arguments, flags=("-W", "error"), **environment):
    return subprocess.run(
        [sys.executable, *flags, str(page), *arguments],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "agg", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def told(stderr):
    """Lines of the standard error, but for those of the fonts of the machine and of the bars."""
    lines = re.split(r"[\r\n]+", stderr)
    return [line for line in lines if line.strip() and not re.match(r"Fontconfig |.+\d+%\|", line)]


@each_page
def test_the_script_runs_without_a_warning(fast, tmp_path, page):
    done = run_script(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stderr) == []
    assert "Measured on" in done.stdout
    assert str(tmp_path) not in done.stdout
    assert list(tmp_path.iterdir()) == []


@each_page
def test_the_notebook_runs_in_an_empty_folder(fast, tmp_path, page):
    _, blocks = split_code_and_text_blocks(str(page))
    settings = {**DEFAULT_GALLERY_CONF, "src_dir": ""}
    written = jupyter_notebook(blocks, settings, str(page.parent))
    notebook = nbformat.reads(json.dumps(written), as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    streams = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert told("".join(streams)) == []
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert pictures
    assert any("<svg" in o.get("data", {}).get("text/html", "") for o in outputs)


@each_page
def test_the_page_keeps_the_promises_of_its_checklist(page):
    text = page.read_text(encoding="utf-8")
    title = re.search(r"^(.+)\n=+$", text, flags=re.MULTILINE)[1]
    assert title.endswith("?")
    for promise in ("Prediction", "get_parsed_args", "environment()", "default_rng(", "assert "):
        assert promise in text, promise
    assert "tqdm" not in text
    cells = re.split(r"^# %%.*$", text, flags=re.MULTILINE)
    longest = max(
        sum(bool(line.strip()) and not line.startswith("#") for line in cell.splitlines())
        for cell in cells[1:]
    )
    assert longest <= 40


def test_an_unknown_option_of_a_page_is_refused(tmp_path):
    done = run_script(GEMM, tmp_path, "--itype", "99", flags=())
    assert done.returncode == 2
    assert "got '99', expected 1, 10 or 16" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_never_runs_on_another_provider_than_asked(fast, tmp_path):
    from ortmeter.runtime.providers import usable_providers

    if "cuda" in usable_providers():
        pytest.skip("CUDA works on this machine")
    done = run_script(GEMM, tmp_path, "--provider", "cuda", flags=())
    assert done.returncode != 0
    assert "ProviderUnavailableError" in done.stderr
    assert "Measured on" not in done.stdout


def test_a_type_without_kernel_is_an_error_when_it_is_the_one_to_measure(fast, tmp_path):
    done = run_script(GEMM, tmp_path, "--itype", "16", flags=())
    assert done.returncode != 0
    assert "Could not find an implementation for Gemm" in done.stderr


def test_a_page_shows_what_it_recorded(tmp_path):
    options = ["--provider", "cpu", "--config", "8,12", "--repeat", "5", "--processes", "1"]
    folder = tmp_path / "results"
    done = run_script(GEMM, tmp_path, *options, "--record", ORTMETER_RESULTS=str(folder))
    assert done.returncode == 0, done.stderr
    (file,) = folder.rglob("*.json")
    assert file.name.startswith("plot_op_gemm2_cuda--cpu--")
    measured, recorded = done.stdout.split("recorded on ")
    conclusion = measured.partition("Measured on")[2].partition("saved plot_op")[0].strip()
    assert recorded.partition("Measured on")[2].strip() == conclusion


@pytest.mark.parametrize("itype", ["10"])
def test_the_gemm_page_measures_other_types(fast, tmp_path, itype):
    done = run_script(GEMM, tmp_path, "--itype", itype, "--config", "8,12")
    assert done.returncode == 0, done.stderr
    assert "float16 on CPU, threads=1" in done.stdout
    assert "size 12" in done.stdout


@pytest.mark.cuda
@each_page
@pytest.mark.parametrize("itype", ["1", "10", "16"])
def test_the_same_lines_run_on_cuda(fast, tmp_path, page, itype):
    options = ["--itype", itype] if "itype=" in page.read_text(encoding="utf-8") else []
    done = run_script(page, tmp_path, "--provider", "cuda", *options, flags=())
    assert done.returncode == 0, done.stderr
    assert "CUDA" in done.stdout


@pytest.fixture(scope="module")
def gemm_page():
    """Names of the Gemm page, after it ran."""
    return run_page("plot_op_gemm2_cuda")


def planted(**medians):
    """Samples whose medians are known, by name of candidate."""
    names = {
        "two": "two Gemms",
        "concat": "Concat then Gemm",
        "one": "one Gemm (constant)",
        "two_constant": "two Gemms (constant)",
        "copied": "two Gemms (session.run)",
    }
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(names[key], m * np.exp(0.01 * rng.standard_normal((10, 12))))
        for key, m in medians.items()
    )


FASTER = planted(two=2.0, concat=1.0, one=1.0, two_constant=3.0, copied=2.0)
SLOWER = planted(two=1.0, concat=2.0, one=3.0, two_constant=1.5, copied=2.0)
EQUAL = planted(two=1.0, concat=1.0, one=1.0, two_constant=1.0, copied=1.0)


def test_the_answer_follows_the_samples(gemm_page):
    answer, claims = gemm_page["conclude"](Comparisons({1: FASTER, 2: SLOWER, 3: EQUAL}, "size"))
    text = str(answer)
    assert text.startswith(
        "With constant weights, one Gemm (constant) is faster than two Gemms (constant) at size 1 "
    )
    assert "is slower than two Gemms (constant) at size 2" in text
    assert "within 5% at size 3" in text
    changing = [claim for claim in claims if claim.topic == "weights that change"]
    assert [claim.verdict for claim in changing][:2] == ["faster", "slower"]
    assert changing[0].ratio == pytest.approx(2, rel=0.05)
    ranks = [str(claim) for claim in claims if "ranking" in claim.values]
    assert ranks[1].startswith("size 2: two Gemms has the lowest median; slower: Concat then Gemm")


@pytest.mark.parametrize(
    ("groups", "verdict"),
    [({1: FASTER, 2: SLOWER}, "wrong"), ({1: FASTER, 3: EQUAL}, "right")],
)
def test_the_prediction_is_judged(gemm_page, groups, verdict):
    _, claims = gemm_page["conclude"](Comparisons(groups, "size"))
    (prediction,) = [claim for claim in claims if "predicted" in claim.subject]
    assert prediction.verdict == verdict


def test_too_few_samples_decide_nothing(gemm_page):
    few = Comparison(Measurement(m.name, m.seconds[:1, :5]) for m in FASTER.values())
    answer, claims = gemm_page["conclude"](Comparisons({1: few}, "size"))
    assert "too few samples for an interval" in str(answer)
    assert not any(claim.is_difference for claim in claims)
    (prediction,) = [claim for claim in claims if "predicted" in claim.subject]
    assert prediction.verdict == "undecided"


def test_another_machine_gets_the_answer_of_its_own_samples(gemm_page):
    here = gemm_page["here"]
    there = dataclasses.replace(
        here,
        data={**here.data, "results": Comparisons({2: SLOWER}, "size")},
        environment=dataclasses.replace(here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(ortmeter.replay(gemm_page["report"], [there])).split())
    assert text.startswith("A Planted CPU, ")
    assert "one Gemm (constant) is slower than two Gemms (constant) at size 2 (0.5" in text
    assert "Wrong: predicted that joined weights are never slower" in text
    assert "Measured on A Planted CPU" in text
