import dataclasses
from pathlib import Path

import pytest
import verdicts
from _ext import claims, machines, tables
from page_runner import EXAMPLES

import ortmeter
from ortmeter.evidence import Prediction
from ortmeter.machine.environment import environment
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import load_records
from ortmeter.study.records import record as make_record
from ortmeter.study.rendering import Answer

DOC = Path(__file__).parent.parent / "_doc"

RESULTS = DOC / "results"


def planted(page, answer, *found, cpu="A CPU_1", provider="cpu", **data):
    args = ortmeter.get_parsed_args(page, args=[])
    machine = dataclasses.replace(environment(), cpu=cpu, cores=3, gpus=(), processor={})
    record = make_record(page, args, Provider.parse(provider), data)
    return dataclasses.replace(record, environment=machine, answer=Answer(answer), claims=found)


def right(text, topic):
    return Prediction(text, "right", topic=topic)


def test_a_table_is_a_list_of_lists_whose_cells_may_have_several_lines():
    head = [".. list-table::", "   :header-rows: 1"]
    assert tables.list_table(["a"], [["1"]]) == [*head, "", "   * - a", "   * - 1", ""]
    table = tables.list_table(["a", "b"], [["1", "| 2\n| 3"]], classes="x")
    assert table[:3] == [*head, "   :class: x"]
    assert table[-4:] == ["   * - 1", "     - | 2", "       | 3", ""]


def test_texts_are_not_interpreted():
    assert tables.plain("a*b_`c`|d|") == r"a\*b\_\`c\`\|d\|"


def test_machines_have_one_row_each():
    peaks = {"peaks": {"GFLOP/s": 123.4, "GB/s": 20.0}, "legend": "float32 on CPU, threads=1"}
    records = [
        planted("plot_parallelized_reduction", "first.", Prediction("second.", "right")),
        planted("plot_op_gemm2_cuda", "gemm.", **peaks),
        planted("plot_op_gemm2_cuda", "other.", cpu="B", **peaks),
    ]
    text = "\n".join(machines.machines_text(records))
    assert text.count("A CPU\\_1 (generation unknown), 3 cores\n") == 1
    assert text.count("123 GFLOP/s, 20 GB/s (float32 on CPU, threads=1)") == 2
    assert "second." not in text


def test_an_answer_has_one_row_for_each_machine():
    record = planted("plot_op_gemm2_cuda", "gemm.")
    records = [
        dataclasses.replace(record, answer=Answer("gemm.", "holds")),
        dataclasses.replace(record, answer=Answer("gemm.", "fails"), environment=environment()),
        dataclasses.replace(record, answer=None),
    ]
    text = "\n".join(machines.answers_text(records))
    assert text.count(":ref:`l-plot-op-gemm2-cuda`") == 2
    assert ("- holds" in text, "- fails" in text) == (True, True)


def test_without_records_nothing_is_claimed():
    assert machines.machines_text([])[0] == "Nothing was recorded yet."
    text = "\n".join(claims.claims_text([]))
    assert text.count("open, not recorded yet") == len(claims.read_originals())


def test_an_original_claim_is_answered_by_the_claims_of_every_machine():
    original = {"text": "it is faster", "page": "plot_x", "topic": "speed", "provider": "CPU"}
    records = [
        planted("plot_x", "yes", right("2", "speed"), right("3", "size"), cpu="A"),
        planted("plot_x", "no", right("4", "speed"), cpu="B"),
        planted("plot_y", "no", right("5", "speed")),
    ]
    found = [
        ("A (generation unknown), 3 cores, CPU", "Right: 2"),
        ("B (generation unknown), 3 cores, CPU", "Right: 4"),
    ]
    assert claims.answers(original, records) == found
    # What a CPU says of a claim about CUDA leaves it open; a record on CUDA closes it.
    on_cuda = original | {"provider": "CUDA"}
    assert claims.answers(on_cuda, records) == [("CUDA", "open, not recorded yet"), *found]
    gpu = planted("plot_x", "yes", right("6", "speed"), provider="cuda")
    assert claims.answers(on_cuda, [gpu]) == [
        ("A CPU_1 (generation unknown), 3 cores, CUDA", "Right: 6")
    ]


@pytest.mark.parametrize("original", claims.read_originals(), ids=lambda x: x["text"][:40])
def test_every_original_claim_is_answered_by_its_page(original):
    records = load_records(original["page"], RESULTS)
    told = dict(claims.answers(original, records))
    assert told
    if original["provider"] == "CPU" and "CPU" in told:  # to be recorded: the page has the answer
        (page,) = EXAMPLES.rglob(f"{original['page']}.py")
        assert f"[{original['topic']}]" in page.read_text(encoding="utf-8")
    # A record that says nothing of a claim leaves it open.
    silent = original | {"topic": "?"}
    assert claims.answers(silent, records) == [(original["provider"], "open, not recorded yet")]


@pytest.mark.parametrize("page", verdicts.pages())
def test_a_record_keeps_what_its_samples_say(page):
    for machine, (_, record) in verdicts.records(page).items():
        judged = verdicts.judged(page)[machine]
        assert (record.answer.verdict, record.claims) == (judged.verdict, judged.claims)
