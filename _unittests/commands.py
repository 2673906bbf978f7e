"""Commands as their users call them: the models that they read, the reports that they write."""

import json
from argparse import ArgumentParser

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from ortmeter.cli import conversion, main
from ortmeter.cli.inputs import add_feeds
from ortmeter.cli.report import Report
from ortmeter.timing.candidates import model_variants

#: Options that make a command quick.
QUICK = {
    "bench": ["--repeat", "2", "--budget", "0.1", "--processes", "1"],
    "profile": ["--repeat", "2"],
    "diff": ["--against", "reference", "--search-budget", "0"],
}
HEADER = '<ir_version: 10, opset_import: ["": 21]> g '


def parse(graph, **weights):
    """Read a model, with its header or without, and give it weights."""
    model = onnx.parser.parse_model(graph if graph.startswith("<") else HEADER + graph)
    made = (onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    model.graph.initializer.extend(made)
    return model


def behind_constants(model):
    """Give the weights of a model to Constant nodes, as some exporters do."""
    for tensor in model.graph.initializer:
        node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        model.graph.node.insert(0, node)
    del model.graph.initializer[:]
    return model


def save(file, graph, *, beside="", **weights):
    """Write a model, with its weights in a file beside it if it has a name; return its file."""
    outside = {"save_as_external_data": True, "location": beside, "size_threshold": 0}
    onnx.save(parse(graph, **weights), file, **(outside if beside else {}))
    return file


def convert(given, models, feeds):
    """Add what ``--precision`` and ``--rewrite`` make of models; return the report and them too."""
    parser = ArgumentParser()
    conversion.add_options(parser, "")
    parser.add_argument("--force", action="store_true")
    add_feeds(parser)
    report, variants = Report("bench"), model_variants(models, feeds, provider="cpu")
    asked = conversion.read_conversion(parser.parse_args(given))
    return asked.apply(report, variants), report, variants


def run(capsys, *arguments):
    """Run a command; return its exit code, its report and what it wrote as errors."""
    code = main([*map(str, arguments), "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {}, told.err


def report_of(capsys, *arguments):
    """Run a command that succeeds, return its report."""
    code, report, errors = run(capsys, *arguments)
    assert code == 0, errors
    return report


def tables_of(report):
    """Return the tables of a report by the titles of their sections."""
    return {section["title"]: section["tables"] for section in report["sections"]}


def refused(capsys, *arguments):
    """Run a command that is refused, return the line that says why."""
    code = main([*map(str, arguments)])
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1), told.err
    assert told.err.startswith(f"ortmeter {arguments[0]}: ")
    return told.err
