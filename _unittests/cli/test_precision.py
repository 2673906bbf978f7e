"""Tests of ortmeter.cli.conversion: what `ortmeter bench --precision` adds."""

from argparse import ArgumentParser

import numpy as np
import onnx
import pytest

from ortmeter.cli import baseline, conversion
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.timing.candidates import model_variants

MODEL = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}


def add(*given, models=None, feeds=FEEDS):
    parser = ArgumentParser()
    conversion.add_options(parser)
    baseline.add_options(parser)
    report = Report("bench")
    variants = model_variants(models or {"m": MODEL}, feeds, provider="cpu")
    found = conversion.converted(parser.parse_args(given), report, variants)
    return found, report, variants


def test_nothing_is_added_unless_it_is_asked_for():
    found, report, variants = add()
    assert found is variants
    assert not report.sections


def test_converted_models_are_added_with_their_size_and_difference():
    asked = ["float16", "QDQ U8S8", "float16"]
    found, report, _ = add(*(part for name in asked for part in ("--precision", name)))
    assert list(found) == ["m", "float16", "QDQ U8S8"]
    (section,) = report.sections
    (table,) = report.to_dict()["sections"][0]["tables"]
    assert section.title == "Converted models"
    rows = {row["candidate"]: row for row in table}
    assert rows["m"]["largest difference (rms, %)"] == 0
    assert 0.005 < rows["float16"]["largest difference (rms, %)"] < 0.1
    assert 0.3 < rows["QDQ U8S8"]["largest difference (rms, %)"] < 3
    sizes = [rows[name]["size (MiB)"] for name in found]
    assert sizes[0] > 1.8 * sizes[1] > 2.8 * sizes[2]
    weights = {tensor.data_type for tensor in found["QDQ U8S8"].model.graph.initializer}
    assert onnx.TensorProto.INT8 in weights


def test_several_models_are_named():
    found, *_ = add("--precision", "float16", models={"a": MODEL, "b": MODEL}, feeds=[FEEDS] * 2)
    assert list(found) == ["a", "b", "a, float16", "b, float16"]


def test_names_are_separated_by_commas_as_in_other_options():
    found, *_ = add("--precision", "float16, QDQ U8S8", "--precision", "weights 4 bits,float16")
    assert list(found) == ["m", "float16", "QDQ U8S8", "weights 4 bits"]


def test_what_cannot_be_added_is_refused():
    with pytest.raises(
        InvalidArgumentError, match="--precision do not go with --save or --baseline"
    ):
        add("--precision", "float16", "--save", "kept.json")
    cnn, feeds = sample_cnn(size=8), {"input": np.ones((1, 3, 8, 8), np.float32)}
    with pytest.raises(ModelError, match="--precision 'bfloat16': ONNX Runtime"):
        add("--precision", "bfloat16", models={"cnn": cnn}, feeds=feeds)
    with pytest.raises(InvalidArgumentError, match="nothing to convert"):
        add("--precision", "weights 4 bits", models={"cnn": cnn}, feeds=feeds)
    with pytest.raises(InvalidArgumentError, match="--precision: got 'int8'. Accepted: .*float16"):
        add("--precision", "float16,int8")
    with pytest.raises(InvalidArgumentError, match="--precision: got 'float16,', expected values"):
        add("--precision", "float16,")
