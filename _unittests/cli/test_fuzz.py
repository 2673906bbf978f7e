"""Whatever is broken or hostile: an error in one line, exit code 2, nothing written."""

import io
import itertools
import json
import unicodedata
import zipfile

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest
from commands import QUICK
from processes import run_python

from ortmeter.runtime.models import layer_norm_matmul

pytestmark = pytest.mark.slow

HEADER = '<ir_version: 11, opset_import: ["": 21]>'
LOOP = f"""{HEADER} g (float[4] X) => (float[4] Z)
<int64 n = {{3}}, bool yes = {{1}}> {{
    Z = Loop (n, yes, X) <body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {{
        d = Identity(c) w = Sqrt(v)
    }}>
}}"""
ABS = f"{HEADER} g (float[n] X) => (float[n] Y) {{ Y = Abs(X) }}"
# What is read before anything runs is read by the same functions: cases go from one to the next.
COMMANDS = itertools.cycle(QUICK)
# A process runs many commands; it dies with the first one that crashes, and says which.
PROGRAM = """
import contextlib, io, json, sys
from ortmeter.cli import main
answers = []
for arguments in json.load(sys.stdin):
    print(arguments, file=sys.stderr, flush=True)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    answers.append([code, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""


def run(command_lines, folder):
    """Run commands in a folder; return the exit code of each, once its output was checked."""
    before = sorted(folder.rglob("*"))
    given = {"input": json.dumps(command_lines), "cwd": folder, "errors": "replace"}
    done = run_python("-X", "faulthandler", "-c", PROGRAM, timeout=600, **given)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert len(answers) == len(command_lines)
    for line, (code, out, err) in zip(command_lines, answers, strict=True):
        assert code in {0, 2}, (line, err)
        assert "Traceback" not in err, (line, err)
        assert "nobody expected this" not in err, (line, err)
        assert acting(out + err) == set(), line
        if code == 2:
            last = err.splitlines()[-1]
            assert last.startswith((f"ortmeter {line[0]}: ", "ortmeter: error: ")), (line, err)
    assert sorted(folder.rglob("*")) == before
    return [code for code, _, _ in answers]


def acting(text):
    """Return the characters on which a terminal would act."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {char for char in text if unicodedata.category(char) in kinds} - set("\n\t")


def broken(content, rng):
    """Yield variants of a file: cut, with bytes changed, removed, repeated."""
    for _ in range(6):
        yield content[: rng.integers(len(content))]
    for _ in range(10):
        changed = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        yield bytes(changed)
    for _ in range(4):
        first, last = sorted(rng.integers(len(content), size=2))
        yield content[:first] + content[last:]
        yield content[:last] + content[first:]


def test_broken_models(tmp_path):
    rng = np.random.default_rng(0)
    models = {"loop": onnx.parser.parse_model(LOOP), "norm": layer_norm_matmul(4)}
    lines = []
    for name, model in models.items():
        for i, content in enumerate(broken(model.SerializeToString(), rng)):
            (tmp_path / f"{name}-{i:02}.onnx").write_bytes(content)
            sizes = ["--dim", "a=2", "--dim", "b=2"] if name == "norm" else []
            command = next(COMMANDS)
            line = [command, f"{name}-{i:02}.onnx", "--provider", "cpu", *sizes]
            lines.append(line + QUICK[command])
    codes = run(lines, tmp_path)
    assert codes.count(2) > len(codes) / 2


def odd_models():
    """Yield models whose inputs are not the usual ones, right or not."""
    types = onnx.TensorProto.DataType
    for name, kind in types.items():
        cast = onnx.helper.make_node("Cast", ["X"], ["Y"], to=onnx.TensorProto.FLOAT)
        shape = ["n"]
        inputs = [onnx.helper.make_tensor_value_info("X", kind, shape)]
        outputs = [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, shape)]
        graph = onnx.helper.make_graph([cast], "g", inputs, outputs)
        opset = [onnx.helper.make_opsetid("", 25)]
        yield name, onnx.helper.make_model(graph, opset_imports=opset, ir_version=13)
    for text in ("string[n] X) => (string[n] Y", "seq(float[n]) X) => (seq(float[n]) Y"):
        body = f"{HEADER} g ({text}) {{ Y = Identity(X) }}"
        yield text.partition("[")[0].replace("(", "-"), onnx.parser.parse_model(body)
    for kind, shape in itertools.product((1, 99, -1, 2**31 - 1), ("none", "negative", "huge", "n")):
        model = onnx.parser.parse_model(ABS)
        tensor = model.graph.input[0].type.tensor_type
        tensor.elem_type = kind
        if shape == "none":
            tensor.ClearField("shape")
        elif shape != "n":
            tensor.shape.dim[0].dim_value = {"negative": -3, "huge": 2**62}[shape]
        yield f"{kind}-{shape}", model
    model = onnx.parser.parse_model(ABS)
    model.graph.input[0].ClearField("type")
    yield "untyped", model


def test_odd_types_and_shapes(tmp_path):
    lines = []
    given = itertools.cycle((["--dim", "n=3"], ["--shape", "X=3"]))
    for name, model in odd_models():
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
        for sizes in ([], next(given)):
            command = next(COMMANDS)
            lines.append([command, f"{name}.onnx", "--provider", "cpu", *sizes, *QUICK[command]])
    codes = run(lines, tmp_path)
    assert codes.count(0) > 20


def test_broken_feeds(tmp_path):
    rng = np.random.default_rng(0)
    onnx.save(onnx.parser.parse_model(ABS), tmp_path / "m.onnx")
    stored, packed, alone = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(alone, np.ones(3, np.float32))
    np.savez(stored, X=np.ones(3, np.float32))
    np.savez_compressed(packed, X=np.ones(3, np.float32))
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("../X.npy", "no array")
    tensor = onnx.numpy_helper.from_array(np.ones(3, np.float32), "X").SerializeToString()
    text = onnx.helper.make_tensor("X", onnx.TensorProto.STRING, [1], [b"\xff"]).SerializeToString()
    contents = [
        (kind, content)
        for kind, start in (
            ("npz", stored.getvalue()),
            ("npz", packed.getvalue()),
            ("npz", foreign.getvalue()),
            ("npy", alone.getvalue()),
            ("json", b'{"X": [1, 2.5, -3e2]}'),
            ("pb", tensor),
            ("pb", text),
        )
        for content in (start, *broken(start, rng))
    ]
    for i, (kind, content) in enumerate(contents):
        (tmp_path / f"{i}.{kind}").write_bytes(content)
    lines = [
        ["diff", "m.onnx", "--provider", "cpu", *QUICK["diff"], "--feeds", f"{i}.{kind}"]
        for i, (kind, _) in enumerate(contents)
    ]
    codes = run(lines, tmp_path)
    assert codes[0] == 0
    assert codes.count(2) > len(codes) / 2


def test_names_that_act_on_the_terminal(tmp_path):
    names = [
        "\x1b[2J.onnx",
        "\u202egnp.onnx",
        "{}=>.onnx",
        "a\nb.onnx",
        "é\u200b.onnx",
        "%s%n.onnx",
    ]
    lines = []
    for name in names:
        model = onnx.parser.parse_model(ABS)
        model.graph.node[0].name = "\x1b]0;title\x07" + name
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "\x1b[31mn"
        onnx.save(model, tmp_path / name)
        for sizes, form in itertools.product(([], ["--shape", "X=2"]), ([], ["--json"])):
            command = next(COMMANDS)
            lines.append([command, name, "--provider", "cpu", *sizes, *QUICK[command], *form])
    codes = run(lines, tmp_path)
    assert codes.count(0) == codes.count(2) == len(codes) / 2
