"""Pieces joined are the whole text, and no piece ends inside a character."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from rekindle.core.text import incremental
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.token_bytes import is_byte_level, token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from tests.unit.kept_memory import kept_bytes

PIECES = ["▁", "▁▁", "▁the", "▁a", "b", "é", "東", "<unk>", ".", "▁x▁y"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = 10_000


def tokenizer_of(backend: Backend) -> Tokenizer:
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("naïve 東", normalized=False)])
    return Tokenizer(backend)


def byte_level() -> Tokenizer:
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return tokenizer_of(backend)


def bytes_in_a_sequence() -> Tokenizer:
    """Make a tokenizer of bytes; its decoder is a sequence."""
    backend = byte_level().backend
    backend.decoder = decoders.Sequence([decoders.ByteLevel()])
    return Tokenizer(backend)


def byte_fallback(decoder: decoders.Decoder) -> Tokenizer:
    vocabulary = {token: place for place, token in enumerate([*PIECES, *BYTES])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoder
    return tokenizer_of(backend)


def word_piece() -> Tokenizer:
    tokens = ["[UNK]", "un", "##aff", "##able", "don", "'", "t", ".", "the"]
    backend = Backend(models.WordPiece(vocab={token: place for place, token in enumerate(tokens)}))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer_of(backend)


def no_decoder() -> Tokenizer:
    return tokenizer_of(Backend(models.WordLevel(vocab={"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")))


LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "bytes-in-a-sequence": bytes_in_a_sequence,
    "byte-fallback": lambda: byte_fallback(decoders.Sequence(LLAMA)),
    "gemma": lambda: byte_fallback(decoders.Sequence(LLAMA[:3])),
    "metaspace": lambda: byte_fallback(decoders.Metaspace()),
    "word-piece": word_piece,
    "no-decoder": no_decoder,
}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}


def pieces(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    return decoded(tokenizer, ids, skip_special_tokens)[0]


def decoded(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> tuple[list[str], bytes]:
    """Return the pieces of some tokens, and the bytes of an incomplete character at their end."""
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens)
    first = [decoder.push(token) for token in ids]
    last, cut = decoder.finish()
    return [*first, last], cut


def assert_decoded(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> None:
    """Check the joined pieces against the decoding of the tokens, without an incomplete character at the end."""
    parts, cut = decoded(tokenizer, ids, skip_special_tokens)
    expected = tokenizer.decode(ids, skip_special_tokens)
    if cut and is_byte_level(tokenizer):
        assert expected.endswith("\ufffd")
        expected = expected[:-1]
    elif cut:  # whose decoding would give U+FFFD for bytes before it too
        known_ids = [token for token in ids if tokenizer.backend.id_to_token(token) is not None]
        known_ids = [token for token in known_ids if not (skip_special_tokens and token in tokenizer.special_ids)]
        assert cut == bytes(token - len(PIECES) for token in known_ids[-len(cut) :])
        expected = tokenizer.decode(known_ids[: -len(cut)], skip_special_tokens)
    assert "".join(parts) == expected
    assert len(cut) < 4


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_goes_on_with_a_text_is_decoded_as_behind_it(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    text = tokenizer.filler_ids
    ids = data.draw(st.lists(st.integers(0, len(PIECES) - 1), max_size=5))
    decoder = IncrementalDecoder(tokenizer, goes_on=True)
    continuation = "".join([*map(decoder.push, ids), decoder.finish()[0]])
    assert tokenizer.decode(text) + continuation == tokenizer.decode([*text, *ids]).removesuffix("\ufffd")


def test_the_first_space_of_what_goes_on_with_a_text_is_part_of_it() -> None:
    spaced = [PIECES.index("▁the"), PIECES.index("b")]
    for name in ("byte-fallback", "metaspace"):
        assert "".join(pieces(TOKENIZERS[name], spaced)) == "theb"
        decoder = IncrementalDecoder(TOKENIZERS[name], goes_on=True)
        assert [decoder.push(token) for token in spaced] == [" the", "b"]


@pytest.mark.parametrize("text", ["über", "đem", "Ġ"])
def test_an_added_token_with_letters_of_the_bytes_alphabet_is_text(text: str) -> None:
    tokenizer = byte_level()
    tokenizer.backend.add_tokens([AddedToken(text, normalized=False)])
    ids = Tokenizer(tokenizer.backend).encode(f"a{text}b")
    assert "".join(pieces(Tokenizer(tokenizer.backend), ids)) == f"a{text}b"
    assert token_bytes(Tokenizer(tokenizer.backend), ids[1]) == text.encode()


def test_tokens_of_a_decoder_that_is_a_sequence_of_one_are_bytes() -> None:
    tokenizer = bytes_in_a_sequence()
    assert [token_bytes(tokenizer, token) for token in tokenizer.encode("é")] == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_tokens_joined_are_their_decoding(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    token = st.integers(0, tokenizer.vocab_size + 1) | st.sampled_from(sorted(tokenizer.special_ids))
    ids = data.draw(st.lists(token))
    for skip in (True, False):
        assert_decoded(tokenizer, ids, skip)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("byte-level", [169, 94]),
        *((name, [len(PIECES) + 0xED, len(PIECES) + 0xA1]) for name in ("byte-fallback", "gemma")),
    ],
)
def test_half_of_a_surrogate_is_no_incomplete_character(name: str, ids: list[int]) -> None:
    assert decoded(TOKENIZERS[name], ids)[1] == b""
    assert_decoded(TOKENIZERS[name], ids)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_tokens_of_the_default_model_joined_are_their_decoding(
    smollm2_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2_tokenizer.vocab_size + 1)))
    assert_decoded(smollm2_tokenizer, ids)


@given(text=st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    parts = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(parts) == text
    assert parts[-1] == ""


def test_a_character_waits_for_its_last_byte() -> None:
    fallback = TOKENIZERS["byte-fallback"]
    for name in ("byte-level", "bytes-in-a-sequence"):
        assert pieces(TOKENIZERS[name], TOKENIZERS[name].encode("🚀b")) == ["", "", "", "🚀", "b", ""]
    ids = [len(PIECES) + byte for byte in "🚀".encode()]
    assert pieces(fallback, [*ids, PIECES.index("b")]) == ["", "", "", "", "🚀b", ""]


def test_an_unfinished_character_is_held_back_at_the_end() -> None:
    fallback, byte_level = TOKENIZERS["byte-fallback"], TOKENIZERS["byte-level"]
    assert decoded(fallback, [len(PIECES) + byte for byte in "é🚀".encode()[:-1]]) == (
        ["", *[""] * 4, "é"],
        b"\xf0\x9f\x9a",
    )
    ids = byte_level.encode("é🚀")[:-1]
    assert decoded(byte_level, ids) == (["", "é", "", "", "", ""], b"\xf0\x9f\x9a")


def test_the_bytes_of_single_tokens_joined_are_the_text() -> None:
    for name, text in (("byte-level", "é🚀 b</s>"), ("byte-fallback", None)):
        tokenizer = TOKENIZERS[name]
        ids = tokenizer.encode(text) if text else [*map(PIECES.index, ["▁the", "▁a", "b"]), len(PIECES) + 0xC3]
        joined = b"".join(token_bytes(tokenizer, token) for token in ids)
        assert joined == (text.encode() if text else b" the ab\xc3")
    assert token_bytes(TOKENIZERS["word-piece"], 2) == b"aff"
    assert token_bytes(TOKENIZERS["byte-level"], 10**6) == b""


def test_words_keep_the_space_in_front_of_them() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    ids = [PIECES.index(piece) for piece in ("▁the", "▁a", "▁", "▁the", "b")]
    assert pieces(tokenizer, ids) == ["the", " a", " ", " the", "b", ""]


def test_special_tokens_give_nothing() -> None:
    for tokenizer in TOKENIZERS.values():
        decoder = IncrementalDecoder(tokenizer)
        assert [decoder.push(token) for token in sorted(tokenizer.special_ids)] == ["", ""]
        assert all(decoder.skips(token) for token in tokenizer.special_ids)
        assert not decoder.skips(0)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_their_text_where_they_are_not_skipped(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    begin, end = sorted(tokenizer.special_ids)
    assert "".join(pieces(tokenizer, [begin, 1, end], False)) == tokenizer.decode([begin, 1, end], False)
    assert "</s>" in "".join(pieces(tokenizer, [begin, 1, end], False))


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback"])
def test_a_token_costs_the_same_late_as_early(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    decoder = IncrementalDecoder(tokenizer)

    def push() -> None:
        for _ in range(TOKENS):
            decoder.push(4)

    assert kept_bytes(incremental, push) < TOKENS, "what a token costs depends on it, and on what is kept of others"
