"""Tests of ``ortmeter diff``; the right values are those of NumPy."""

import numpy as np
import onnx
import onnxruntime
import pytest
from cli_runs import HEADER, refused, report, run, save

from ortmeter.attribution import session
from ortmeter.cli import diff as command
from ortmeter.cli.references import on_provider
from ortmeter.discrepancy import models as compared
from ortmeter.errors import ModelError
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import layer_norm_matmul, sample_cnn
from ortmeter.runtime.providers import Provider
from ortmeter.timing import candidates

SIZES = ["--dim", "a=2", "--dim", "b=3", "--provider", "cpu"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of models that differ by one weight, by the names of nodes, or by their outputs."""
    folder = tmp_path_factory.mktemp("models")
    norm = layer_norm_matmul(16)
    onnx.save(norm, folder / "norm.onnx")
    weights = {tensor.name: tensor for tensor in norm.graph.initializer}
    for name, changed in (
        ("add_b", lambda b: b + np.float32(0.5)),
        ("matmul_w", lambda w: 1.5 * w),
    ):
        kept = onnx.TensorProto.FromString(weights[name].SerializeToString())
        moved = changed(onnx.numpy_helper.to_array(kept))
        weights[name].CopyFrom(onnx.numpy_helper.from_array(moved, name))
        other = onnx.ModelProto.FromString(norm.SerializeToString())
        for node in other.graph.node if name == "matmul_w" else ():
            node.name = f"<b>{node.name}</b>"
        onnx.save(other, folder / f"{name}.onnx")
        weights[name].CopyFrom(kept)
    norm.graph.output[0].name = norm.graph.node[-1].output[0] = "renamed"
    onnx.save(norm, folder / "renamed.onnx")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    save(folder / "two.onnx", "(float[4] X) => (float[4] Y, float[4] Z) { Y = Exp(X) Z = Abs(X) }")
    return folder


def diff(*arguments, code=0):
    return report("diff", *arguments, code=code)


def outputs(found):
    (rows,) = (rows for title, rows in found.tables.items() if "the worst output first" in title)
    return rows


def nodes(found):
    (rows,) = (rows for title, rows in found.tables.items() if title.startswith("Nodes of the s"))
    return rows


def table(found, start):
    (rows,) = (rows for title, rows in found.tables.items() if title.startswith(start))
    return rows


@pytest.mark.parametrize(("other", "name"), [("add_b", "Z"), ("renamed", "Z / renamed")])
def test_two_models_that_differ_by_a_constant(models, other, name):
    """Outputs of other names are compared by rank."""
    (row,) = outputs(diff(models / "norm.onnx", models / f"{other}.onnx", *SIZES))
    assert (row["output"], row["elements"]) == (name, 2 * 3 * 16)
    assert row["absolute"] == pytest.approx(0.5 if other == "add_b" else 0, rel=1e-4)


@pytest.mark.parametrize("against", ["torch", "reference", "float64", "cpu"])
def test_a_model_is_compared_to_another_way_to_run_it(models, tmp_path, against):
    html = tmp_path / "report.html"
    found = diff(models / "norm.onnx", *SIZES, "--against", against, "--html", html)
    (row,) = outputs(found)
    assert 0 <= row["absolute"] < 1e-3
    assert "dtype" not in found.told[0]
    if against == "cpu":
        assert row["absolute"] == 0
        assert len(found.tables) == 2  # with the inputs
        return
    assert {row["node"] for row in nodes(found)} == {"norm", "matmul", "add"}
    assert "does not change its outputs" in found.told[1]
    assert "<svg" in html.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limits", "code", "last"),
    [
        (["--atol", "0.4"], 1, "beyond the tolerance atol=0.4: Z (96 of 96 elements beyond atol="),
        (["--atol", "0.6"], 0, "all outputs are within the tolerance atol=0.6."),
        ([], 0, "no tolerance was asked: nothing is judged (--atol, --rtol)."),
    ],
)
def test_the_tolerance_gives_the_exit_code(models, limits, code, last):
    pair = models / "norm.onnx", models / "add_b.onnx"
    assert diff(*pair, *SIZES, *limits, code=code).told[-1].startswith(last)


def test_the_help_says_that_nothing_is_judged_without_a_tolerance():
    told = " ".join(run("diff", "--help").out.split())
    assert told.count("without --atol and --rtol, no error is judged") == 2


def test_the_search_takes_the_time_that_it_is_given(models):
    options = ["--against", "torch", "--search-budget"]
    found = diff(models / "cnn.onnx", *options, "0")
    assert len(found.tables) == 2
    assert "nodes are not searched: --search-budget 0." in found.told
    found = diff(models / "cnn.onnx", *options, "1e-9", "--optimization", "none")
    (group,) = table(found, "Groups of nodes that the search did not separate")
    assert group["effect"] == pytest.approx(outputs(found)[0]["mean"], rel=1e-6)
    told = next(line for line in found.told if line.startswith("the session is"))
    assert "changes its outputs" not in told
    left = group["nodes"]
    assert left > 1
    assert told.endswith(f"; {14 - left} of 14 nodes are searched; {left} are not, in 1 group.")


@pytest.mark.parametrize("sides", [[], ["--against", "cpu"], ["cnn.onnx"]])
def test_options_of_the_session_reach_it(models, monkeypatch, sides):
    asked = []
    for module in (candidates, session, compared):
        make = module.make_session
        monkeypatch.setattr(
            module, "make_session", lambda *a, make=make, **k: asked.append(k) or make(*a, **k)
        )
    monkeypatch.chdir(models)
    options = ["--session-config", "session.set_denormal_as_zero=0", "--spinning", "off"]
    options += ["--session-option", "enable_mem_pattern=0", "--threads", "2"]
    diff("cnn.onnx", *sides, *options, "--provider", "cpu")
    assert len(asked) >= 2  # other inputs are tried
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
        (
            ["cnn.onnx", "--against", "paper"],
            "Accepted: torch, reference, float64, unoptimized, cpu",
        ),
        (
            ["norm.onnx", *SIZES, "--against", "unoptimized", "--optimization", "none"],
            "Accepted: basic, extended, layout, all",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(models, monkeypatch, arguments, message):
    monkeypatch.chdir(models)
    line = refused("diff", *arguments)
    assert line.startswith("ortmeter diff: ")
    assert message in line


@pytest.mark.parametrize("limit", ["nan", "-1", "inf", "many"])
@pytest.mark.parametrize("name", ["--atol", "--rtol"])
def test_limits_that_are_refused(name, limit):
    done = run("diff", "cnn.onnx", f"{name}={limit}")
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert name.strip("-") in last
    assert limit in last


def pair(folder, first, second, header=HEADER):
    """Write two models, each a signature and its nodes."""
    return [
        save(folder / name, f"{signature} {{ {body} }}", header)
        for name, (signature, body) in (("one.onnx", first), ("two.onnx", second))
    ]


TWO = "(float[4] X) => (float[4] Y, float[4] Z)"


def test_the_output_that_is_not_a_number_is_named_first(tmp_path):
    """The healthy output has errors, the other one has none: it is all NaN."""
    one = TWO, "A = Abs(X) Y = Sqrt(A) Z = Sqrt(A)"
    two = TWO, "A = Abs(X) S = Sqrt(A) Y = Mul(S, S) N = Neg(A) Z = Sqrt(N)"
    found = diff(*pair(tmp_path, one, two), code=1)
    first, second = outputs(found)
    assert (first["output"], first["NaN"], first["ulp"]) == ("Z", 4, None)
    assert second["ulp"] > 0
    assert ", output Z: " in found.told[0]
    assert found.told[-1] == "beyond any tolerance: Z (4 mismatched NaN)."


@pytest.mark.parametrize("how", ["other", "unoptimized", "cpu", "--search-budget"])
def test_nan_on_both_sides_is_told_with_the_node_that_makes_it(tmp_path, how):
    """The square root of -1 is NaN in numpy too."""
    graph = "(float[3] X) => (float[3] Y) { [a] A = Neg(X) [b] Y = Sqrt(A) }"
    one, x = save(tmp_path / "one.onnx", graph), np.float32([1, -1, 1])
    np.savez(tmp_path / "feeds.npz", X=x)
    ways = {"other": [one], "--search-budget": [how, 0]}.get(how, ["--against", how])
    found = diff(one, *ways, "--feeds", tmp_path / "feeds.npz", "--provider", "cpu")
    with np.errstate(invalid="ignore"):
        n_nan = np.isnan(np.sqrt(-x)).sum()
    first = int(how == "unoptimized")  # the optimizers come before
    assert f"{n_nan} of 3 values are NaN on both sides" in found.told[first]
    made = "Sqrt b is the first node to make NaN from finite inputs, as float64 does from them."
    assert any(line.endswith(made) for line in found.told)
    assert outputs(found)[0]["both NaN"] == n_nan
    if how == "unoptimized":
        for level in table(found, "Levels"):
            assert (level["both NaN"], level["NaN"], level["absolute"]) == (n_nan, 0, 0)


@pytest.mark.parametrize("how", ["other", "float64"])
def test_nan_that_are_fed_are_told(tmp_path, how):
    graph = "(float[3] X, float[1] Z) => (float[3] Y) { A = Neg(X) Y = Add(A, Z) }"
    one = save(tmp_path / "one.onnx", graph)
    np.savez(tmp_path / "feeds.npz", X=np.float32([np.nan, 1, np.nan]), Z=np.float32([np.inf]))
    ways = [one] if how == "other" else ["--against", how]
    told = diff(one, *ways, "--feeds", tmp_path / "feeds.npz", "--provider", "cpu").told
    fed = [line for line in told if line.startswith("input ")]
    assert fed == ["input X has 2 NaN among its 3 values."]


def test_outputs_of_other_shapes_are_named_and_the_others_compared(tmp_path):
    one = TWO, "Y = Abs(X) Z = Neg(X)"
    other = TWO.replace("float[4] Y", "float[8] Y")
    two = other, "A = Abs(X) Y = Concat<axis = 0>(A, A) Z = Abs(X)"
    found = diff(*pair(tmp_path, one, two), code=1)
    rows = outputs(found)
    assert [row["output"] for row in rows] == ["Y", "Z"]
    assert rows[1]["absolute"] > 0
    assert found.told[-1] == "beyond any tolerance: Y (shape: expected (4,), got (8,))."


def test_the_worst_output_is_the_one_beyond_the_tolerance(tmp_path):
    """The error of Y is larger, and accepted: it is relative to a large value."""
    constants = "L = Constant<value_float = 1e6>() T = Constant<value_float = {}>()"
    body = constants + " A = Abs(X) B = Add(A, T) Y = Mul(B, L) Z = Mul(X, T)"
    files = pair(tmp_path, (TWO, body.format("1.0")), (TWO, body.format("1.001")))
    rows = outputs(diff(*files, "--rtol", "1e-3", "--atol", "1e-9", code=1))
    assert [row["output"] for row in rows] == ["Z", "Y"]
    assert rows[1]["absolute"] > rows[0]["absolute"]


def test_the_tolerance_is_that_of_numpy(tmp_path):
    """[0, 1000] against [1e-7, 1000.01]: neither atol nor rtol alone accepts both elements."""
    body = (
        "C = Constant<value = double[2] {{{}}}>() Z = Sub(X, X) D = Cast<to = 11>(Z) Y = Add(C, D)"
    )
    ends = "(float[2] X) => (double[2] Y)"
    files = pair(tmp_path, *((ends, body.format(t)) for t in ("0, 1000", "1e-7, 1000.01")))
    limits = ["--atol", "1e-6", "--rtol", "1e-3"]
    assert np.allclose([1e-7, 1000.01], [0, 1000], atol=1e-6, rtol=1e-3)
    diff(*files, *limits)
    diff(*files, *limits[:2], code=1)
    diff(*files, *limits[2:], code=1)


@pytest.mark.parametrize(
    ("inputs", "nodes", "index"),
    [
        ("(int64[9] I, float[9] X)", "Y = Gather(W, I)", "I"),  # another order
        ("(float[9] X, int64[9] I)", "J = Abs(I) Y = Gather(W, J)", "I"),
        ("(float[9] X, int64[9] ids)", "Y = Gather(W, ids)", "I / ids"),  # another name
    ],
)
def test_equivalent_models_read_the_same_inputs(tmp_path, inputs, nodes, index):
    ends = f"=> (float[9] Y, float[9] Z) <float[50] W = {{{', '.join(map(str, range(50)))}}}>"
    plain = f"(float[9] X, int64[9] I) {ends}", "Y = Gather(W, I) Z = Abs(X)"
    found = diff(*pair(tmp_path, plain, (f"{inputs} {ends}", f"{nodes} Z = Abs(X)")), "--atol", "0")
    told = next(line for line in found.told if line.startswith("inputs shared"))
    shared = told.removeprefix("inputs shared by both models: ").strip(".").split(", ")
    assert set(shared) == {"X", index}


def test_inputs_of_one_model_only_are_told(tmp_path):
    one = "(float[4] X) => (float[4] Y)", "Y = Abs(X)"
    sizes = "<int64[1] b = {0}, int64[1] e = {4}>"
    two = f"(float[5] X) => (float[4] Y) {sizes}", "A = Abs(X) Y = Slice(A, b, e)"
    told = diff(*pair(tmp_path, one, two)).told
    assert "inputs shared by both models: none; in one model only: X." in told


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("float[4] Y, float[4] Z", "outputs are paired by name: Y; by rank: Z / B."),
        ("float[4] Y", "outputs of one model only: B."),
    ],
)
def test_outputs_are_paired_by_name_then_by_rank(tmp_path, ends, told):
    code = int("only" in told)
    one = f"(float[4] X) => ({ends})", "Y = Neg(X) Z = Abs(X)"
    two = "(float[4] X) => (float[4] B, float[4] Y)", "Y = Neg(X) B = Abs(X)"
    found = diff(*pair(tmp_path, one, two), "--atol", "0", code=code)
    assert told in found.told
    assert outputs(found)[0]["output"] == "Y"


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "float8e5m2", "int4", "uint4"])
def test_small_types(tmp_path, kind):
    header, ends = HEADER.replace("21", "23"), f"({kind}[6] X) => ({kind}[6] Y)"
    one = ends, "C = Cast<to = 1>(X) Y = CastLike(C, X)"
    two = ends, "C = Cast<to = 1>(X) S = Add(C, C) Y = CastLike(S, X)"
    first, second = pair(tmp_path, one, two, header)
    (row,) = outputs(diff(first, first, "--atol", "0"))
    assert row["elements"] == 6
    assert outputs(diff(first, second, "--atol", "0", code=1))[0]["absolute"] >= 0.1
    for against in ("float64", "torch", "reference"):
        found = diff(first, "--against", against)
        assert outputs(found)[0]["absolute"] == 0
        assert "Y" in {row["node"] for row in nodes(found)}


def test_what_onnxruntime_refuses_is_not_a_difference(tmp_path):
    graph = "(bfloat16[3, 3] X) => (bfloat16[3, 3] Y) { Y = MatMul(X, X) }"
    one = save(tmp_path / "one.onnx", graph)
    assert "refuses this model on cpu" in refused("diff", one, one)


def test_the_discrepancy_that_is_explained_is_that_of_the_session(models):
    """The same figure in the table of outputs and in the explanation, at every level."""
    for level in ("none", "all"):
        options = ["--provider", "cpu", "--optimization", level, "--by", "ulp"]
        found = diff(models / "cnn.onnx", *options)
        asked = outputs(found)[0]["ulp"]
        told = next(line for line in found.told if line.startswith("the session is"))
        assert told.startswith(f"the session is {asked:.3g} ulp from float64; reading")
        assert "does not change its outputs" in told
        assert told.endswith(f" alone of {asked:.3g} (ulp of the largest value).")
        last = next(row for row in nodes(found) if row["node"] == "sum")
        assert last["total"] == pytest.approx(asked)
        assert bool(last["fused with"]) == (level == "all")


def test_another_provider_has_no_options_of_the_first():
    asked = {"provider": "cuda:1", "threads": 2, "provider_options": {"do_copy_in_default": 1}}
    assert on_provider("cpu", asked) == {"provider": Provider("cpu"), "threads": 2}
    assert asked["provider"] == "cuda:1"


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_drawn_is_given_to_both_sides(tmp_path, count):
    graph = """(float[4] X) => (float[4] Y, float[4] R)
        { [noise] R = RandomNormalLike(X)  Y = Add(X, R) }"""
    file = save(tmp_path / "drawn.onnx", graph)
    found = diff(*[file] * count, "--value", "X=0,1,2,3")
    (row,) = outputs(found)
    assert row["output"] == "Y"
    assert row["ulp"] <= 1
    told = [line for line in found.told if "drawn by 'noise' (RandomNormalLike)" in line]
    assert len(told) == count
    assert all(line.endswith("Output R is left out.") for line in told)


def test_nothing_is_left_to_compare(tmp_path):
    file = save(tmp_path / "all.onnx", "(float[4] X) => (float[4] R) { R = RandomNormalLike(X) }")
    told = refused("diff", file)
    assert "there is nothing to compare: every output is drawn by 'R'" in told


def test_feeds_are_converted_for_the_other_type_of_a_pair(tmp_path):
    graph = "(float[2] X, int64[2] I) => (float[2] Y) { Z = Abs(X)  Y = Gather(Z, I) }"
    np.savez(tmp_path / "feeds.npz", X=np.float32([0.1, -70000]), I=np.int64([0, 1]))
    wide = save(tmp_path / "wide.onnx", graph)
    half = save(tmp_path / "half.onnx", graph.replace("float", "float16"))
    feeds = ["--feeds", tmp_path / "feeds.npz"]
    for models in ((wide, half), (half, wide)):
        found = diff(*models, *feeds, code=1)  # infinite in float16 only
        assert "converted for half.onnx: X from float32 to float16; too large for it" in found.err
        assert "inputs shared by both models: X, I." in found.told
        (row,) = outputs(found)
        expected = abs(float(np.float16(0.1)) - float(np.float32(0.1)))
        assert row["absolute"] == pytest.approx(expected, rel=1e-3)
    # alone, or with other inputs, it is refused
    refused("diff", half, *feeds)
    refused("diff", wide, save(tmp_path / "o.onnx", graph.replace("int64", "int32")), *feeds)


def test_nodes_in_any_order_and_sizes_below_zero(tmp_path):
    """ONNX Runtime sorts the nodes, and takes -1 for a size that is free."""
    graph = "(float[1, 2] X) => (float[1, 2] Z) { Z = Exp(Y)  Y = Abs(X) }"
    file = save(tmp_path / "odd.onnx", graph)
    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, file)
    (got,) = onnxruntime.InferenceSession(file).run(None, {"X": np.float32([[-1, 2]])})
    np.testing.assert_allclose(got, np.exp([[1.0, 2.0]]), rtol=1e-6)
    for files in ([file], [file, file]):
        assert outputs(diff(*files, "--value", "X=[[-1, 2]]"))[0]["ulp"] <= 1


def test_an_error_with_one_judge_says_so(tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (4, 2, 16)).astype(np.uint8)
    scales = rng.random((4, 2)).astype(np.float32)
    graph = """(float[1, 64] A) => (float[1, 4] Y) { [few] Y = com.microsoft.MatMulNBits
        <K = 64, N = 4, bits = 4, block_size = 32, accuracy_level = 4> (A, B, S) }"""
    header = HEADER.replace("21", '21, "com.microsoft": 1')
    file = save(tmp_path / "few.onnx", graph, header, B=codes, S=scales)
    a = rng.standard_normal((1, 64)).astype(np.float32)
    a[0, 3] = 900  # the others are rounded with it
    np.savez(tmp_path / "feeds.npz", A=a)
    digits = np.stack([codes & 15, codes >> 4], -1).reshape((4, 2, 32)) - 8.0
    exact = a.astype(float) @ (digits * scales[:, :, None]).reshape((4, 64)).T
    (got,) = onnxruntime.InferenceSession(file).run(None, {"A": a})
    found = diff(file, "--feeds", tmp_path / "feeds.npz")
    worst = np.abs(got - exact).max()
    assert outputs(found)[0]["absolute"] == pytest.approx(worst, rel=1e-5)
    if worst > np.abs(exact).max() / 256:  # the CPU rounds its inputs
        assert "few has only one judge, our definition." in found.told


def test_the_optimization_that_is_responsible(models, tmp_path):
    html = tmp_path / "report.html"
    given = [models / "cnn.onnx", "--provider", "cpu", "--against", "unoptimized"]
    found = diff(*given, "--html", html)
    levels = {row["level"]: row["absolute"] for row in table(found, "Levels")}
    assert list(levels) == ["basic", "extended", "layout", "all"]
    first, second, *_ = found.told
    assert second.startswith("ONNX Runtime on CPU against unoptimized, output output: ")
    if any(levels.values()):  # the layout depends on the vectors of the machine
        names = [row["optimizer"] for row in table(found, "Optimizers")]
        assert all(name in first for name in names)
        assert first.endswith("the outputs are the same as without optimization.")
    else:
        assert first == "no optimization changes the outputs."
    assert "Levels" in html.read_text(encoding="utf-8")
    assert "no optimization changes the outputs." in diff(*given, "--atol", "1e-2").told


def test_where_two_graphs_part(models, tmp_path):
    html = tmp_path / "report.html"
    found = diff(models / "norm.onnx", models / "matmul_w.onnx", *SIZES, "--html", html)
    first = next(row for row in table(found, "Where the graphs part") if row["relative"])
    names = "matmul", "<b>matmul</b>"
    assert (first["node of norm.onnx"], first["node of matmul_w.onnx"]) == names
    (told,) = [text for text in found.told if "results aligned" in text]
    assert "they part at matmul / <b>matmul</b> (MatMul)" in told
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;matmul&lt;/b&gt;" in page
    assert "<b>matmul" not in page
    same = diff(models / "norm.onnx", models / "norm.onnx", *SIZES).told
    assert "3 results aligned of 3 and 3: none differs." in same


def source(found):
    return found.tables["Inputs"][0]["from"]


@pytest.fixture
def wrapping(tmp_path):
    """Two models that differ on -128 alone, whose absolute value is no int8."""
    signature = "(int8[4] X) => (float[4] Y)"
    one = signature, "A = Cast<to = 1>(X) Y = Abs(A)"
    return pair(tmp_path, one, (signature, "A = Abs(X) Y = Cast<to = 1>(A)"))


BUDGET = ["--search-budget", "400"]


def test_an_edge_of_8_bits_that_no_seed_draws(wrapping):
    drawn = [np.random.default_rng(seed).integers(-128, 128, 4) for seed in range(6)]
    assert not any((array == -128).any() for array in drawn)
    found = diff(*wrapping, "--atol", "1", *BUDGET, code=1)
    assert "the smallest of 8 bits differ the most" in found.told[0]
    assert source(found) == "random, the smallest of 8 bits"
    assert "largest error 256" in found.told[1]  # 128 and -128


def test_another_seed(tmp_path):
    first, *others = [int(np.random.default_rng(seed).integers(10, size=1)[0]) for seed in range(6)]
    seed, value = next((s, v) for s, v in enumerate(others, 1) if v != first)
    signature = f"(int64[1] X) => (int64[1] Y) <int64 k = {{{value}}}, int64 z = {{1000}}>"
    other = signature, "E = Equal(X, k) Y = Where(E, z, X)"
    found = diff(*pair(tmp_path, (signature, "Y = Identity(X)"), other), *BUDGET)
    assert source(found) == f"random, seed {seed}"
    assert f"seed {seed} differ the most" in found.told[0]


def test_inputs_that_are_no_worse_are_told(tmp_path):
    file = save(tmp_path / "tanh.onnx", "(float[64] X) => (float[64] Y) { Y = Tanh(X) }")
    found = diff(file, *BUDGET)
    (told,) = [text for text in found.told if "other random inputs" in text]
    seeds = ", ".join(f"seed {seed}" for seed in range(1, 5))
    assert told.endswith(f"zeros, 100 times larger, {seeds} and seed 5.")
    assert source(found) == "random, seed 0"


@pytest.mark.parametrize("given", [["--value", "X=1,2,3,4"], ["--search-budget", "0"]])
def test_inputs_that_are_given_stay(wrapping, given):
    told = diff(*wrapping, *given).told
    assert "no difference" in told[0]
    assert not any("random inputs" in text for text in told)


def test_inputs_on_which_a_model_fails_are_passed_over(tmp_path):
    """Zeros are no shape of three elements."""
    nodes = "A = Abs(N) O = Div(A, A) I = Cast<to = 7>(O) T = Constant<value_ints = [3]>() "
    nodes += "S = Mul(I, T) R = Reshape(X, S) Y = Abs(R)"
    file = save(tmp_path / "m.onnx", f"(float[1] N, float[3] X) => (float[s] Y) {{ {nodes} }}")
    told = diff(file, "--against", "reference", *BUDGET).told
    assert not any("zeros" in text for text in told)


def test_a_softmax_of_8_bits_that_wraps_for_two_seeds_of_six(tmp_path):
    """ONNX Runtime fuses it into QLinearSoftmax, which does not saturate (1.31.1)."""
    file = save(
        tmp_path / "softmax.onnx",
        """(int8[1, 2] X) => (int8[1, 2] Y)
        <float s = {0.04}, int8 z = {0}, float t = {0.0033333334}, int8 u = {-128}>
        { D = DequantizeLinear(X, s, z) P = Softmax(D) Y = QuantizeLinear(P, t, u) }""",
    )

    def wrapped(x):
        e = np.exp(0.04 * x.astype(np.float64))
        exact = np.clip(300 * e / e.sum() - 128, -128, 127)
        (y,) = onnxruntime.InferenceSession(file).run(None, {"X": x})
        return bool((np.abs(y - exact) > 1).any())

    seeds = [random_feeds(file, seed=seed)["X"] for seed in range(6)]
    if not any(map(wrapped, seeds)):
        pytest.skip("this release of onnxruntime saturates")
    assert [wrapped(x) for x in seeds] == [False, True, False, False, False, True]
    found = diff(file, "--against", "unoptimized", *BUDGET)
    assert source(found) == "random, the smallest of 8 bits"
    assert any("QDQSelectorActionTransformer" in text for text in found.told)


def test_a_search_that_fails_keeps_the_table_of_outputs(tmp_path, monkeypatch):
    def too_large(*_args, **_options):
        raise MemoryError

    monkeypatch.setattr(command, "explain_session", too_large)
    file = save(tmp_path / "model.onnx", "(float[4] X) => (float[4] Y) { Y = Exp(X) }")
    found = diff(file, "--provider", "cpu")
    assert "nodes are not searched: MemoryError." in found.told
    assert "float64, output Y: " in found.told[0]


def test_what_no_expected_kernel_runs_is_an_error(tmp_path):
    """ONNX Runtime has a kernel for float32 only: nothing computes it in float64."""
    graph = """(float[1, 1, 2, 2] X) => (float[1, 1, 2, 2] Y) {
        C = Constant <value = float[1, 1, 1, 1] {2}> ()  Y = com.microsoft.FusedConv(X, C) }"""
    file = save(tmp_path / "model.onnx", graph, HEADER.replace("21", '21, "com.microsoft": 1'))
    line = refused("diff", file, "--provider", "cpu")
    assert line.startswith("ortmeter diff: No kernel runs node 'Y' (com.microsoft.FusedConv)")


def test_an_optimizer_that_makes_a_model_fail_is_left_out(tmp_path, monkeypatch):
    def compare(self, path):
        if "session_config" not in self._session:
            raise ModelError("Invalid model. Node input 'nm' is not there")
        return whole(self, path)

    whole = command._Diff._compare_ways
    monkeypatch.setattr(command._Diff, "_compare_ways", compare)
    monkeypatch.setattr(command, "find_failing", lambda *_, **__: ("ConstantFolding",))
    file = save(tmp_path / "m.onnx", "(float[4] X) => (float[4] Y) { Y = Abs(X) }")
    given = [file, "--against", "unoptimized", "--provider", "cpu"]
    first = diff(*given).told[0]
    assert first.startswith("at optimization=all, this model runs without ConstantFolding only")
    assert "Node input 'nm' is not there" in first
    monkeypatch.setattr(command, "find_failing", lambda *_, **__: ())
    assert "Node input 'nm' is not there" in refused("diff", *given)
