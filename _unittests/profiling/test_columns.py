import numpy as np
import pytest
from profile_writer import MEMORY, as_old_format, kernel_event, two_runs

from ortmeter.profiling.columns import SIZES, collect


def test_kernels_and_other_events_are_separated():
    kernels, others = collect([two_runs()[:4], two_runs()[4:]])
    assert kernels.start.tolist() == [41, 52, 71, 76]
    assert kernels.duration.tolist() == [10, 5, 4, 3]
    assert kernels.position.tolist() == [2, 3, 6, 7]
    assert [kernels.names[row] for row in kernels.row] == ["first", "second"] * 2
    assert others.is_named("model_run").tolist() == [False, False, False, True, False, True]
    assert len(kernels.descriptions) == 2


def test_sizes_are_read_from_texts():
    kernels, _ = collect([[kernel_event("x", 1, 1)]])
    found = dict(zip(SIZES.values(), kernels.sizes[:, 0].tolist(), strict=True))
    assert found == {"parameter_size": 0, "activation_size": 8, "output_size": 8, **MEMORY}
    assert not kernels.absent.any()


def test_what_is_not_recorded_is_absent():
    kernels, others = collect([as_old_format([kernel_event("x", 1, 1, index=3)])])
    absent = dict(zip(SIZES, kernels.absent[:, 0].tolist(), strict=True))
    assert [name for name, missing in absent.items() if missing] == list(SIZES)[3:]
    assert kernels.sizes[1, 0] == 8
    assert kernels.descriptions[0][4] == 3
    assert [others.names[row] for row in others.row] == ["x_fence_before", "x_fence_after"]


def test_only_the_last_suffix_of_a_name_is_removed():
    kernels, _ = collect([[kernel_event("my_kernel_time", 1, 1)]])
    assert kernels.names == ["my_kernel_time"]


def test_no_kernel_is_accepted():
    kernels, others = collect([two_runs()[:2]])
    assert (len(kernels), len(others)) == (0, 2)
    assert kernels.sizes.shape == (len(SIZES), 0)


@pytest.mark.parametrize("broken", [{"cat": "Node"}, 3, None, {**two_runs()[0], "ts": "x"}])
def test_other_objects_raise(broken):
    with pytest.raises((KeyError, TypeError, ValueError)):
        collect([[*two_runs(), broken]])


def test_positions_follow_the_blocks():
    blocks = [[kernel_event("x", i, 1)] for i in range(5)]
    kernels, _ = collect(blocks)
    assert np.array_equal(kernels.position, range(5))
