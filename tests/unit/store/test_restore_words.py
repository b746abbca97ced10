"""The reasons for unused stored entries are in words."""

from rekindle.assembly.programs.restore_report import difference_text


def test_a_part_is_explained_with_both_values() -> None:
    assert (
        difference_text("numbers", "float32", "float32, Q5_0 (7e)")
        == "numbers (data types, and packed weights): float32, Q5_0 (7e) there, float32 here"
    )
    assert difference_text("host_cpu", "", "zen4").endswith("zen4 there, (nothing) here")
