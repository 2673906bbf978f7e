import numpy as np
import onnx
import onnxruntime
import pytest
from commands import refused, run, save

import ortmeter
import ortmeter.attribution.session
import ortmeter.discrepancy.models
import ortmeter.timing.candidates
from ortmeter.cli import main
from ortmeter.cli.references import on_provider
from ortmeter.runtime.models import layer_norm_matmul, sample_cnn
from ortmeter.runtime.providers import Provider

SIZES = ["--dim", "a=2", "--dim", "b=3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of models that differ by one weight, or by their outputs."""
    folder = tmp_path_factory.mktemp("models")
    norm = layer_norm_matmul(16)
    onnx.save(norm, folder / "norm.onnx")
    weights = {tensor.name: tensor for tensor in norm.graph.initializer}
    moved = onnx.numpy_helper.to_array(weights["add_b"]) + np.float32(0.5)
    weights["add_b"].CopyFrom(onnx.numpy_helper.from_array(moved, "add_b"))
    onnx.save(norm, folder / "moved.onnx")
    scaled = onnx.numpy_helper.to_array(weights["matmul_w"]) * np.float32(1.5)
    weights["matmul_w"].CopyFrom(onnx.numpy_helper.from_array(scaled, "matmul_w"))
    for node in norm.graph.node:
        node.name = f"<b>{node.name}</b>"
    onnx.save(norm, folder / "scaled.onnx")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    save(folder / "two.onnx", "(float[4] X) => (float[4] Y, float[4] Z) { Y = Exp(X) Z = Abs(X) }")
    return folder


def diff(capsys, *arguments):
    return run(capsys, "diff", *arguments)


def tables(report):
    *found, inputs = [section for section in report["sections"] if section["tables"]]
    assert inputs["title"] == "Inputs"
    return [section["tables"][0] for section in found]


def test_two_models_that_differ_by_a_constant(models, capsys):
    code, report, _ = diff(capsys, models / "norm.onnx", models / "moved.onnx", *SIZES)
    assert code == 0
    (row,), _ = tables(report)
    assert row["output"] == "Z"
    assert row["absolute"] == pytest.approx(0.5, rel=1e-4)
    assert row["elements"] == 2 * 3 * 16


@pytest.mark.parametrize("against", ["torch", "reference", "float64", "cpu"])
def test_a_model_is_compared_to_another_way_to_run_it(models, capsys, against):
    options = ["--provider", "cpu", "--against", against]
    code, report, _ = diff(capsys, models / "norm.onnx", *SIZES, *options)
    assert code == 0
    first, *others = tables(report)
    assert 0 <= first[0]["absolute"] < 1e-3
    assert "dtype" not in report["conclusion"][0]
    if against == "cpu":
        assert first[0]["absolute"] == 0
        assert others == []
        return
    (nodes,) = others
    assert {row["node"] for row in nodes} == {"norm", "matmul", "add"}
    assert "does not change its outputs" in report["conclusion"][1]


def test_the_tolerance_gives_the_exit_code(models, capsys):
    pair = [models / "norm.onnx", models / "moved.onnx", *SIZES]
    code, report, _ = diff(capsys, *pair, "--atol", "0.4")
    assert code == 1
    assert report["conclusion"][-1].startswith(
        "beyond the tolerance atol=0.4: Z (96 of 96 elements beyond atol=0.4, the worst ("
    )
    code, report, _ = diff(capsys, *pair, "--atol", "0.6")
    assert code == 0
    assert report["conclusion"][-1] == "all outputs are within the tolerance atol=0.6."
    code, report, _ = diff(capsys, *pair)
    assert code == 0
    last = "no tolerance was asked: nothing is judged (--atol, --rtol)."
    assert report["conclusion"][-1] == last


def test_the_help_says_that_nothing_is_judged_without_a_tolerance(capsys):
    assert main(["diff", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("without --atol and --rtol, no error is judged") == 2


def test_the_search_takes_the_time_that_it_is_given(models, capsys):
    options = ["--against", "torch", "--search-budget"]
    code, report, _ = diff(capsys, models / "cnn.onnx", *options, "0")
    assert code == 0
    assert len(tables(report)) == 1
    assert "nodes are not searched: --search-budget 0." in report["conclusion"]
    code, report, _ = diff(capsys, models / "cnn.onnx", *options, "1e-9", "--optimization", "none")
    assert code == 0
    outputs, groups = tables(report)
    assert [row["nodes"] > 1 for row in groups] == [True]
    assert groups[0]["effect"] == pytest.approx(outputs[0]["mean"], rel=1e-6)
    told = next(line for line in report["conclusion"] if line.startswith("the session is"))
    assert "changes its outputs" not in told
    left = groups[0]["nodes"]
    assert told.endswith(f"; {14 - left} of 14 nodes are searched; {left} are not, in 1 group.")


def test_options_of_the_session_reach_it(models, capsys, monkeypatch):
    asked = []

    def spy(module):
        make = module.make_session
        monkeypatch.setattr(
            module, "make_session", lambda *a, **given: asked.append(given) or make(*a, **given)
        )

    spy(ortmeter.timing.candidates)
    spy(ortmeter.attribution.session)
    spy(ortmeter.attribution.intermediates)
    spy(ortmeter.discrepancy.models)
    options = ["--session-config", "session.set_denormal_as_zero=0", "--spinning", "off"]
    options += ["--session-option", "enable_mem_pattern=0", "--threads", "2"]
    options += ["--provider", "cpu"]
    for sides, count in ([], 2), (["--against", "cpu"], 2), ([models / "cnn.onnx"], 2):
        asked.clear()
        code, *_ = diff(capsys, models / "cnn.onnx", *sides, *options)
        assert code == 0
        assert len(asked) >= count  # other inputs are tried
        for given in asked:
            assert given["spinning"] == "off"
            assert given["threads"] == 2
            assert given["session_options"] == {"enable_mem_pattern": "0"}
            assert given["session_config"] == {"session.set_denormal_as_zero": "0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cnn.onnx", "two.onnx"], "the models have 1 and 2 outputs: output and Y, Z"),
        (["cnn.onnx", "cnn.onnx", "cnn.onnx"], "got 3 models and --against None. Accepted: one"),
        (["cnn.onnx", "cnn.onnx", "--against", "torch"], "got 2 models and --against torch"),
        (["cnn.onnx", "--against", "paper"], "float64, unoptimized, cpu, cuda"),
        (
            ["cnn.onnx", "--against", "unoptimized", "--optimization", "none"],
            "Accepted: basic, extended, layout, all",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(models, capsys, arguments, message):
    paths = [models / name if name.endswith(".onnx") else name for name in arguments]
    assert message in refused(capsys, "diff", *paths)


def test_the_optimization_that_is_responsible(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    given = [models / "cnn.onnx", "--against", "unoptimized", "--provider", "cpu"]
    _, report, _ = diff(capsys, *given, "--html", html)
    levels = {row["level"]: row["absolute"] for row in tables(report)[1]}
    assert list(levels) == ["basic", "extended", "layout", "all"]
    first, second, *_ = report["conclusion"]
    assert second.startswith("ONNX Runtime on CPU against unoptimized, output output: ")
    if any(levels.values()):  # the layout depends on the vectors of the machine
        assert " the outputs: without " in first
        assert first.endswith("the outputs are the same as without optimization.")
    else:
        assert first == "no optimization changes the outputs."
    assert "Levels" in html.read_text(encoding="utf-8")
    code, report, _ = diff(capsys, *given, "--atol", "1e-2")
    assert code == 0
    assert "no optimization changes the outputs." in report["conclusion"]


def test_where_two_graphs_part(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    files = [models / "norm.onnx", models / "scaled.onnx"]
    _, report, _ = diff(capsys, *files, *SIZES, "--html", html)
    first = next(row for row in tables(report)[1] if row["relative"])
    assert (first["node of norm.onnx"], first["node of scaled.onnx"]) == ("matmul", "<b>matmul</b>")
    (told,) = [text for text in report["conclusion"] if "results aligned" in text]
    assert "they part at matmul / <b>matmul</b> (MatMul)" in told
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;matmul&lt;/b&gt;" in page
    assert "<b>matmul" not in page
    _, report, _ = diff(capsys, files[0], files[0], *SIZES)
    assert "3 results aligned of 3 and 3: none differs." in report["conclusion"]


@pytest.fixture
def pair(tmp_path):
    """Write two models of the same signature, or each its own."""

    def write(signature, *bodies, header=""):
        signatures = signature if isinstance(signature, tuple) else (signature,) * len(bodies)
        texts = zip(signatures, bodies, strict=True)
        return [
            save(tmp_path / f"{i}.onnx", f"{header}{signed} {{ {body} }}")
            for i, (signed, body) in enumerate(texts)
        ]

    return write


TWO = "(float[4] X) => (float[4] Y, float[4] Z)"


def test_the_output_that_is_not_a_number_is_named_first(pair, capsys):
    """The healthy output has errors, the other one has none: it is all NaN."""
    right = "A = Abs(X) Y = Sqrt(A) Z = Sqrt(A)"
    wrong = "A = Abs(X) S = Sqrt(A) Y = Mul(S, S) N = Neg(A) Z = Sqrt(N)"
    code, report, _ = diff(capsys, *pair(TWO, right, wrong))
    assert code == 1
    rows = tables(report)[0]
    assert [row["output"] for row in rows] == ["Z", "Y"]
    assert (rows[0]["NaN"], rows[0]["ulp"]) == (4, None)
    assert rows[1]["ulp"] > 0
    assert ", output Z: " in report["conclusion"][0]
    assert report["conclusion"][-1] == "beyond any tolerance: Z (4 mismatched NaN)."


@pytest.mark.parametrize("how", ["other", "unoptimized", "cpu", "--search-budget"])
def test_nan_on_both_sides_is_told_with_the_node_that_makes_it(tmp_path, capsys, how):
    """The square root of -1 is NaN in numpy too."""
    text = "(float[3] X) => (float[3] Y) { [a] A = Neg(X) [b] Y = Sqrt(A) }"
    one = save(tmp_path / "one.onnx", text)
    np.savez(tmp_path / "feeds.npz", X=np.float32([1, -1, 1]))
    ways = {"other": [one], "--search-budget": [how, 0]}.get(how, ["--against", how])
    options = ["--feeds", tmp_path / "feeds.npz", "--provider", "cpu"]
    _, report, _ = diff(capsys, one, *ways, *options)
    told = report["conclusion"]
    with np.errstate(invalid="ignore"):
        n_nan = np.isnan(np.sqrt([-1.0, 1.0, -1.0])).sum()
    first = int(how == "unoptimized")  # the optimizers come before
    assert f"{n_nan} of 3 values are NaN on both sides" in told[first]
    made = "Sqrt b is the first node to make NaN from finite inputs, as float64 does from them."
    assert any(line.endswith(made) for line in told)
    assert tables(report)[0][0]["both NaN"] == n_nan
    if how == "unoptimized":
        for level in tables(report)[1]:
            assert (level["both NaN"], level["NaN"], level["absolute"]) == (n_nan, 0, 0)


@pytest.mark.parametrize("how", ["other", "unoptimized", "float64"])
def test_nan_that_are_fed_are_told(tmp_path, capsys, how):
    text = "(float[3] X, float[1] Z) => (float[3] Y) { A = Neg(X) Y = Add(A, Z) }"
    one = save(tmp_path / "one.onnx", text)
    np.savez(tmp_path / "feeds.npz", X=np.float32([np.nan, 1, np.nan]), Z=np.float32([np.inf]))
    ways = [one] if how == "other" else ["--against", how]
    options = ["--feeds", tmp_path / "feeds.npz", "--provider", "cpu"]
    _, report, _ = diff(capsys, one, *ways, *options)
    fed = [line for line in report["conclusion"] if line.startswith("input ")]
    assert fed == ["input X has 2 NaN among its 3 values."]


def test_outputs_of_other_shapes_are_named_and_the_others_compared(pair, capsys):
    signatures = TWO, "(float[4] X) => (float[8] Y, float[4] Z)"
    longer = "A = Abs(X) Y = Concat<axis = 0>(A, A) Z = Abs(X)"
    code, report, _ = diff(capsys, *pair(signatures, "Y = Abs(X) Z = Neg(X)", longer))
    assert code == 1
    rows = tables(report)[0]
    assert [row["output"] for row in rows] == ["Y", "Z"]
    assert rows[1]["absolute"] > 0
    last = report["conclusion"][-1]
    assert last == "beyond any tolerance: Y (shape: expected (4,), got (8,))."


def test_the_worst_output_is_the_one_beyond_the_tolerance(pair, capsys):
    """The error of Y is larger, and accepted: it is relative to a large value."""
    constants = "L = Constant<value_float = 1e6>() T = Constant<value_float = {}>()"
    body = constants + " A = Abs(X) B = Add(A, T) Y = Mul(B, L) Z = Mul(X, T)"
    files = pair(TWO, body.format("1.0"), body.format("1.001"))
    code, report, _ = diff(capsys, *files, "--rtol", "1e-3", "--atol", "1e-9")
    rows = tables(report)[0]
    by_name = {row["output"]: row for row in rows}
    assert by_name["Y"]["absolute"] > by_name["Z"]["absolute"]
    assert code == 1
    assert rows[0]["output"] == "Z"


def test_inputs_of_one_model_only_are_told(tmp_path, capsys):
    one = save(tmp_path / "one.onnx", "(float[4] X) => (float[4] Y) { Y = Abs(X) }")
    text = "(float[5] X) => (float[4] Y) { A = Abs(X) Y = Slice(A, b, e) }"
    two = save(tmp_path / "two.onnx", text, b=np.int64([0]), e=np.int64([4]))
    _, report, _ = diff(capsys, one, two)
    assert "inputs shared by both models: none; in one model only: X." in report["conclusion"]


@pytest.mark.parametrize(
    ("first", "code", "told"),
    [
        ("(float[4] X) => (float[4] Y, float[4] A)", 0, "paired by name: Y; by rank: A / B."),
        ("(float[4] X) => (float[4] Y)", 1, "outputs of one model only: B."),
    ],
)
def test_outputs_are_paired_by_name_then_by_rank(pair, capsys, first, code, told):
    signatures = first, "(float[4] X) => (float[4] B, float[4] Y)"
    files = pair(signatures, "Y = Neg(X) A = Abs(X)", "Y = Neg(X) B = Abs(X)")
    found, report, _ = diff(capsys, *files, "--atol", "0")
    assert found == code
    assert code == 0 or [row["output"] for row in tables(report)[0]] == ["Y"]
    assert any(sentence.endswith(told) for sentence in report["conclusion"])


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "float8e5m2", "int4", "uint4"])
def test_small_types(pair, capsys, kind):
    bodies = "Y = CastLike(C, X)", "S = Add(C, C) Y = CastLike(S, X)"
    one, two = pair(
        f"({kind}[6] X) => ({kind}[6] Y)",
        *(f"C = Cast<to = 1>(X) {body}" for body in bodies),
        header='<ir_version: 10, opset_import: ["": 23]> g ',
    )
    code, report, _ = diff(capsys, one, one, "--atol", "0")
    assert (code, tables(report)[0][0]["elements"]) == (0, 6)
    code, report, _ = diff(capsys, one, two, "--atol", "0")
    assert code == 1
    assert tables(report)[0][0]["absolute"] >= 0.1
    for against in ("float64", "torch", "reference"):
        code, report, _ = diff(capsys, one, "--against", against)
        assert code == 0
        assert tables(report)[0][0]["absolute"] == 0
        assert "Y" in {row["node"] for row in tables(report)[1]}


@pytest.mark.parametrize(
    ("text", "feeds", "message"),
    [
        (
            "(bfloat16[3, 3] X) => (bfloat16[3, 3] Y) { Y = MatMul(X, X) }",
            {},
            "refuses this model on cpu",
        ),
        (
            "(float[2] X, int64[1] I) => (float[1] Y) { Y = Gather(X, I) }",
            {"X": np.float32([1, 2]), "I": np.int64([7])},
            "The model failed",
        ),
    ],
)
def test_what_cannot_run_is_not_a_difference(tmp_path, capsys, text, feeds, message):
    np.savez(tmp_path / "feeds.npz", **feeds)
    one = save(tmp_path / "one.onnx", text)
    given = ["--feeds", tmp_path / "feeds.npz"] if feeds else []
    assert message in refused(capsys, "diff", one, one, *given)


def test_the_discrepancy_that_is_explained_is_that_of_the_session(models, capsys):
    """The same figure in the table of outputs and in the explanation, at every level."""
    for level in ("none", "all"):
        options = ["--provider", "cpu", "--optimization", level]
        _, report, _ = diff(capsys, models / "cnn.onnx", *options)
        outputs, nodes = tables(report)
        asked = outputs[0]["mean"]
        told = next(line for line in report["conclusion"] if line.startswith("the session is"))
        assert told.startswith(f"the session is {outputs[0]['ulp']:.3g} ulp from float64; reading")
        assert "does not change its outputs" in told
        assert told.endswith(f" alone of {asked:.3g} (mean absolute error).")
        last = next(row for row in nodes if row["node"] == "sum")
        assert last["total"] == pytest.approx(asked)
        assert bool(last["fused with"]) == (level == "all")


def test_another_provider_has_no_options_of_the_first():
    session = {"provider": "cuda:1", "threads": 2, "provider_options": {"do_copy_in_default": 1}}
    moved = on_provider("cpu", session)
    assert moved == {"provider": Provider("cpu"), "threads": 2}
    assert session["provider"] == "cuda:1"


def written(folder, name, text, **feeds):
    np.savez(folder / "feeds.npz", **feeds)
    return save(folder / f"{name}.onnx", text)


@pytest.mark.parametrize("how", ["float64", "unoptimized", "cpu", "other"])
def test_values_that_are_drawn_are_told_first(tmp_path, capsys, how):
    text = """(float[4] X) => (float[4] Y, float[4] Z)
        { [noise] R = RandomNormalLike(X)  Y = Add(X, R)  Z = Abs(X) }"""
    file = save(tmp_path / "drawn.onnx", text)
    ways = [file] if how == "other" else ["--against", how]
    code, report, _ = diff(capsys, file, *ways, "--provider", "cpu")
    assert code == 0
    first, *others = report["conclusion"]
    assert first == (
        "drawn.onnx: values are drawn by 'noise' (RandomNormalLike). Outputs that depend on them "
        "differ from run to run: there is no error in that, and no node is searched."
    )
    assert not [line for line in others if "effect" in line or "the first result" in line]
    (outputs,) = tables(report)
    assert {row["output"]: row["absolute"] for row in outputs}["Z"] == 0


def test_feeds_are_converted_for_the_other_type_of_a_pair(tmp_path, capsys):
    text = "(float[2] X, int64[2] I) => (float[2] Y) { Z = Abs(X)  Y = Gather(Z, I) }"
    given = {"X": np.float32([0.1, -70000]), "I": np.int64([0, 1])}
    wide = written(tmp_path, "wide", text, **given)
    half = written(tmp_path, "half", text.replace("float", "float16"), **given)
    feeds = ["--feeds", tmp_path / "feeds.npz"]
    for pair in ((wide, half), (half, wide)):
        code, report, err = diff(capsys, *pair, *feeds)
        assert code == 1  # infinite in float16 only
        assert "converted for half.onnx: X from float32 to float16; too large for it" in err
        assert "inputs shared by both models: X, I." in report["conclusion"]
        (row,) = tables(report)[0]
        expected = abs(float(np.float16(0.1)) - float(np.float32(0.1)))
        assert row["absolute"] == pytest.approx(expected, rel=1e-3)
    # alone, or with other inputs, it is refused
    assert main(["diff", str(half), *map(str, feeds)]) == 2
    other = written(tmp_path, "other", text.replace("int64", "int32"), **given)
    assert main(["diff", str(wide), str(other), *map(str, feeds)]) == 2


def test_nodes_in_any_order_and_sizes_below_zero(tmp_path, capsys):
    """ONNX Runtime sorts the nodes, and takes -1 for a size that is free."""
    text = "(float[1, 2] X) => (float[1, 2] Z) { Z = Exp(Y)  Y = Abs(X) }"
    file = written(tmp_path, "odd", text, X=np.float32([[-1, 2]]))
    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, file)
    (got,) = onnxruntime.InferenceSession(file).run(None, {"X": np.float32([[-1, 2]])})
    np.testing.assert_allclose(got, np.exp([[1.0, 2.0]]), rtol=1e-6)
    for files in ([file], [file, file]):
        code, report, _ = diff(capsys, *files, "--feeds", tmp_path / "feeds.npz")
        assert code == 0
        assert tables(report)[0][0]["ulp"] <= 1


def test_an_error_with_one_judge_says_so(tmp_path, capsys):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (4, 2, 16)).astype(np.uint8)
    scales = rng.random((4, 2)).astype(np.float32)
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1, 64] A) => (float[1, 4] Y) { [few] Y = com.microsoft.MatMulNBits
        <K = 64, N = 4, bits = 4, block_size = 32, accuracy_level = 4> (A, B, S) }"""
    save(tmp_path / "few.onnx", text, B=codes, S=scales)
    a = rng.standard_normal((1, 64)).astype(np.float32)
    a[0, 3] = 900  # the others are rounded with it
    np.savez(tmp_path / "feeds.npz", A=a)
    digits = np.stack([codes & 15, codes >> 4], -1).reshape((4, 2, 32)) - 8.0
    exact = a.astype(float) @ (digits * scales[:, :, None]).reshape((4, 64)).T
    (got,) = onnxruntime.InferenceSession(tmp_path / "few.onnx").run(None, {"A": a})
    code, report, _ = diff(capsys, tmp_path / "few.onnx", "--feeds", tmp_path / "feeds.npz")
    assert code == 0
    assert tables(report)[0][0]["absolute"] == pytest.approx(np.abs(got - exact).max(), rel=1e-5)
    if np.abs(got - exact).max() > np.abs(exact).max() / 256:  # the CPU rounds its inputs
        assert "few has only one judge, our definition." in report["conclusion"]
