"""Pages of one namespace are found by requests of its salt and its length alone."""

from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.scheduler.requests.aspects.rope_rule import RopeLengthRule

SALTS = st.text("\0long1 ", max_size=8) | st.sampled_from(["\0long", "\x000", "\0\0long", "\0100"])
LENGTHS = st.sampled_from([0, 1, 100])


@given(st.booleans(), st.tuples(SALTS, LENGTHS), st.tuples(SALTS, LENGTHS))
def test_no_words_of_a_salt_name_the_namespace_of_another(
    grows: bool, one: tuple[str, int], other: tuple[str, int]
) -> None:
    rope_rule = RopeLengthRule(0, grows)
    if not grows:  # all long requests turn alike
        one, other = ((salt, min(length, 1)) for salt, length in (one, other))
    assert (rope_rule.namespace(*one) == rope_rule.namespace(*other)) == (one == other)


def test_a_salt_names_the_namespace_that_is_on_disk_already() -> None:
    assert RopeLengthRule(None, False).namespace("team", 0) == "team"
    assert RopeLengthRule(64, False).namespace("team", 65) == "team\0long"
