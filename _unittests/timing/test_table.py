import numpy as np

from ortmeter.timing import Measurement, in_milliseconds, to_frame

RESULTS = {
    8: {
        "a": Measurement("a", [[1e-3, 2e-3, 3e-3]], 5, (0.5,), flop=4e6),
        "b": Measurement("b", [[1.23456e-3] * 3]),
    },
    16: {"a": Measurement("a", [[4e-3] * 3], 5, (0.5,), flop=4e6)},
}


def test_one_row_per_key_and_candidate():
    frame = to_frame(RESULTS, "size")
    assert frame[["size", "candidate"]].to_numpy().tolist() == [[8, "a"], [8, "b"], [16, "a"]]
    assert frame["median"].tolist() == [2e-3, 1.23456e-3, 4e-3]
    assert frame.loc[0, ["q1", "q3"]].tolist() == [1.5e-3, 2.5e-3]
    assert frame["gflop_per_s"].tolist()[::2] == [2.0, 1.0]
    assert np.isnan(frame["gflop_per_s"][1])
    assert frame["first_call"].tolist()[::2] == [0.5, 0.5]


def test_the_table_for_readers_has_units_and_four_digits():
    table = in_milliseconds(to_frame(RESULTS, "size"), ["size", "candidate"])
    assert table.loc[(8, "b"), "median (ms)"] == 1.235
    assert table.loc[(8, "a"), "first call (ms)"] == 500
    assert "GB/s" not in table.columns  # nobody declared bytes
    assert {"q1 (ms)", "q3 (ms)", "GFLOP/s", "repeat", "number"} <= set(table.columns)
