"""Classified tokens become spans as in the pipeline of transformers."""

from typing import Any, get_args

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import Classifier
from rekindle.scoring.tagging import Aggregation, spans_of

WORDS = ("[UNK]", "[CLS]", "[SEP]", "new", "york", "##ers", "met", "anna")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEAD = Classifier(np.eye(5, dtype=np.float32), LABELS, "softmax")
TEXT = "new yorkers met anna ☂"
ROWS = (
    (9, 0, 0, 0, 0),  # [CLS]
    (0, 0, 0, 2, 0),  # new: B-LOC
    (0, 0, 0, 0, 2),  # york: I-LOC
    (0, 0, 3, 0, 0),  # ##ers: I-PER, surer than the others
    (2, 0, 0, 0, 0),  # met: O
    (0, 2, 0, 0, 0),  # anna: B-PER
    (0, 2, 0, 0, 0),  # ☂: B-PER again
    (9, 0, 0, 0, 0),  # [SEP]
)


def tokenizer() -> Tokenizer:
    """Return a tokenizer of whole words and one suffix."""
    backend = Backend(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair=None, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return Tokenizer(backend, longest=16)


def found(aggregation: Aggregation) -> list[Any]:
    """Return the label, word and place of each span of `TEXT`."""
    own = tokenizer()
    spans = spans_of(own, HEAD, aggregation, TEXT, own.encode(TEXT), np.array(ROWS, np.float64))
    return [(each.label, each.word, TEXT[each.start : each.end]) for each in spans]


PEOPLE = [("PER", "anna", "anna"), ("PER", "☂", "☂")]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (
            "none",
            [
                ("B-LOC", "new", "new"),
                ("I-LOC", "york", "york"),
                ("I-PER", "##ers", "ers"),
                ("B-PER", "anna", "anna"),
                ("B-PER", "☂", "☂"),
            ],
        ),
        ("simple", [("LOC", "new york", "new york"), ("PER", "##ers", "ers"), *PEOPLE]),
        ("first", [("LOC", "new yorkers", "new yorkers"), *PEOPLE]),
        ("max", [("LOC", "new", "new"), ("PER", "yorkers", "yorkers"), *PEOPLE]),
        ("average", [("LOC", "new", "new"), ("PER", "yorkers", "yorkers"), *PEOPLE]),
    ],
)
def test_tokens_are_joined_as_the_aggregation_says(aggregation: Aggregation, expected: list[Any]) -> None:
    assert found(aggregation) == expected


def test_the_score_of_a_span_is_the_mean_of_its_tokens() -> None:
    own, states = tokenizer(), np.array(ROWS, np.float64)
    share = np.exp(2) / (np.exp(2) + 4)
    for aggregation in get_args(Aggregation):
        first, *_ = spans_of(own, HEAD, aggregation, TEXT, own.encode(TEXT), states)
        assert first.score == pytest.approx(share)


def test_a_card_has_a_row_for_each_span() -> None:
    own = tokenizer()
    spans = spans_of(own, HEAD, "first", TEXT, own.encode(TEXT), np.array(ROWS, np.float64))
    assert repr(spans).startswith("<rekindle.Spans: 3 spans: LOC 'new yorkers' 64.9%; PER 'anna'")
    assert "new yorkers" in spans._repr_mimebundle_()["text/html"]
    assert [spans[0].label, len(spans)] == ["LOC", 3]
