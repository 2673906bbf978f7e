"""Tests of ortmeter.runtime.inputs: the memory; the rest is seen in the feeds that are drawn."""

import os

import onnx.parser
import pytest

from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.inputs import half_of_memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 2**20


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        # no group, no limit
        ("", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/user.slice\n", {}, MACHINE),
        # version 2: in a container, in a group, in a group of a group
        ("0::/\n", {"memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{64 * MIB}", "a/memory.max": "max"}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{64 * MIB}", "a/memory.max": f"{MIB}"}, MIB),
        # a path that is seen from elsewhere
        ("0::/../../x\n", {"memory.max": f"{MIB}"}, MIB),
        # version 1: other kinds of groups do not matter, the path of the host is not there
        ("4:cpu:/c\n3:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{MIB}"}, MIB),
        ("3:cpu,memory:/h/d\n", {"memory/memory.limit_in_bytes": f"{MIB}"}, MIB),
        ("3:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        ("4:cpu:/c\n", {"c/memory.max": f"{MIB}", "memory.max": f"{MIB}"}, MACHINE),
        # both
        (
            "3:memory:/a\n0::/a\n",
            {"memory/a/memory.limit_in_bytes": f"{2 * MIB}", "a/memory.max": f"{MIB}"},
            MIB,
        ),
        # what cannot be read is no limit
        ("nonsense\n\n0::", {"memory.max": "many"}, MACHINE),
    ],
)
def test_the_limits_of_the_groups_count(tmp_path, membership, files, expected):
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": membership, **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert half_of_memory(tmp_path) == expected // 2


def test_a_system_without_groups_has_its_memory(tmp_path):
    assert half_of_memory(tmp_path) == MACHINE // 2


def test_sizes_that_an_exporter_names_with_a_question_mark_are_not_one_size():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1, n, m] X) => (float[1, n, m] Y) '
        "{ Y = Abs(X) }"
    )
    for dim in list(model.graph.input[0].type.tensor_type.shape.dim)[1:]:
        dim.dim_param = "?"
    assert random_feeds(model, shapes={"X": (1, 2, 3)})["X"].shape == (1, 2, 3)
