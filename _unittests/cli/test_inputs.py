"""Tests of ortmeter.cli.inputs: the inputs that a command line gives."""

import shlex
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
from commands import refused, report_of, save

from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.errors import FeedError, InvalidArgumentError

GRAPHS = {
    "audio": "(float[batch, length] input, int64 sr) => (float[batch, length] Y) {Y = Abs(input)}",
    "image": "(float[?, 3, ?, ?] x, float[2] scale) => (float[2] Y) {Y = Abs(scale)}",
    "two": "(float[a, 4] x, uint8[a] y, string[2] names) => (float[a, 4] Y) {Y = Abs(x)}",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, graph in GRAPHS.items():
        save(f"{name}.onnx", graph)
    np.save("x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    np.savez("xy.npz", x=np.ones((3, 4), np.float32), y=np.ones(3, np.uint8))
    np.save("names.npy", np.array(["a", "b"]))
    return tmp_path


def made(line, *models):
    parser = ArgumentParser()
    add_feeds(parser)
    found = make_feeds(parser.parse_args(shlex.split(line)), models or ("two.onnx",))
    return list(found.values())


def test_what_was_fed_is_listed(files):
    parser = ArgumentParser()
    add_feeds(parser)
    line = (
        "--value sr=16000 --feeds x=x.npy --feeds names=names.npy --value y=1,2,255 --dim batch=1"
    )
    options = parser.parse_args(shlex.split(f"{line} --dim length=8 --seed 3"))
    models = [Path("audio.onnx"), Path("two.onnx")]
    assert inputs_table(options, make_feeds(options, models)).rows == (
        ("input", "float32", "1x8", "", "random, seed 3", "audio.onnx"),
        ("sr", "int64", "scalar", "16000", "--value 16000", "audio.onnx"),
        ("x", "float32", "3x4", "", "--feeds x.npy", "two.onnx"),
        ("y", "uint8", "3", "[1, 2, 255]", "--value 1,2,255", "two.onnx"),
        ("names", "<U1", "2", "", "--feeds names.npy", "two.onnx"),
    )


def test_a_size_that_nothing_gives_is_marked(files):
    parser = ArgumentParser()
    add_feeds(parser)
    options = parser.parse_args(["--value", "input=0.5"])
    table = inputs_table(options, make_feeds(options, [Path("audio.onnx")]))
    assert table.columns == ("input", "type", "shape", "value", "from")
    assert table.rows[0][2:] == ("1x1", "", "--value 0.5; batch, length guessed as 1")


def test_inputs_come_from_files_of_their_own(files):
    (feeds,) = made("--feeds x=x.npy --feeds names=names.npy --value y=1,2,255")
    assert feeds["x"][2, 3] == 11
    assert feeds["y"].tolist() == [1, 2, 255]
    assert feeds["names"].tolist() == ["a", "b"]


def test_what_has_no_file_is_drawn(files):
    (feeds,) = made("--feeds x=x.npy --seed 3")
    assert feeds["y"].shape == (3,)  # as many as x has rows


def test_a_file_for_all_inputs_leaves_those_that_have_a_value(files):
    (feeds,) = made("--feeds xy.npz --value names=a,b")
    assert feeds["names"].tolist() == ["a", "b"]
    (feeds,) = made("--feeds xy.npz --feeds names=names.npy")
    assert feeds["x"].shape == (3, 4)


def test_a_shape_is_for_the_models_that_have_the_input(files):
    line = "--shape x=2x3x1x1 --value x=0.5 --dim batch=1 --dim length=2"
    audio, image = made(line, "audio.onnx", "image.onnx")
    assert audio["input"].shape == (1, 2)
    assert image["x"].tolist() == np.full((2, 3, 1, 1), 0.5).tolist()
    (feeds,) = made("--shape x=5x4", "two.onnx")
    assert (feeds["x"].shape, feeds["y"].shape) == ((5, 4), (5,))


def test_a_file_may_have_a_name_with_an_equal_sign(files):
    (files / "x.npy").rename(files / "x=1.npy")
    (feeds,) = made("--feeds x=x=1.npy")
    assert feeds["x"].shape == (3, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--value z=1", "--value: got 'z=1'. Accepted: NAME=VALUE for one of x: f32[a, 4], y: u8"),
        ("--value x", "--value: got 'x'. Accepted: NAME=VALUE"),
        ("--value y=1 --value y=2", "--value: 'y' has a value already"),
        ("--value x=1 --feeds x=x.npy", "--feeds: 'x' has a value already"),
        ("--value y=1,,2", "value '' given for y"),
        ("--value y=one", "value 'one' given for y: u8[a]. Accepted: integers"),
        ("--value 'x=[[1, 2]' --dim a=1", "this is not JSON"),
        (
            "--feeds z=x.npy",
            "--feeds: got 'z=x.npy'. Accepted: one file for all the inputs, or NAME",
        ),
        ("--feeds xy.npz --feeds xy.npz", "--feeds: got 'xy.npz', 'xy.npz'. Accepted: one file"),
        ("--feeds xy.npz", "'xy.npz' has 'x', 'y'. Accepted: one array for each of x"),
        ("--feeds xy.npz --shape x=3x4", "--dim and --shape describe random inputs"),
        ("--shape x=a", "--shape: got 'x=a', expected NAME=1x3x224"),
        ("--shape x=5x-4", "--shape: got 'x=5x-4'"),
    ],
)
def test_what_is_wrong_is_said(files, line, message):
    with pytest.raises((FeedError, InvalidArgumentError)) as caught:
        made(line)
    assert message in str(caught.value)


@pytest.mark.parametrize("command", ["bench", "profile", "diff"])
def test_every_command_takes_values(files, command, capsys):
    quick = ["--budget", "0.1", "--processes", "1"] if command == "bench" else []
    asked = [command, "audio.onnx", "--provider", "cpu", "--value", "sr=16000", *quick]
    report_of(capsys, *asked, "--shape", "input=1x8")
    told = refused(capsys, *asked)
    assert "--dim batch=1 --dim length=128 on the command line" in told
