"""Commands as their users call them: the models that they read, the reports that they write."""

import json

import onnx
import onnx.numpy_helper
import onnx.parser

from ortmeter.cli import main

HEADER = '<ir_version: 10, opset_import: ["": 21]> g '


def parse(graph, **weights):
    """Read a model, with its header or without, and give it weights."""
    model = onnx.parser.parse_model(graph if graph.startswith("<") else HEADER + graph)
    made = (onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    model.graph.initializer.extend(made)
    return model


def save(file, graph, **weights):
    """Write a model, return its file."""
    onnx.save(parse(graph, **weights), file)
    return file


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
