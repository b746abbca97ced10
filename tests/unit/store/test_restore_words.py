"""The reasons for unused stored entries are in words."""

from rekindle.assembly.programs.restore_report import difference_text


def test_weights_that_are_not_packed_have_a_name() -> None:
    assert (
        difference_text("numerics", "", "Q5_0 (7e)")
        == "numerics (the C++ kernels, and packed weights): Q5_0 (7e) there, weights as plain numbers here"
    )
    assert difference_text("host_cpu", "", "zen4").endswith("zen4 there, (nothing) here")
