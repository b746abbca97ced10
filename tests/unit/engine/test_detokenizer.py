"""Texts of failed requests do not stay in the detokenizer, though no output tells their end."""

import gc
from dataclasses import replace

from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.messages import Output, Outputs, Texts
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.tokenizer import Tokenizer


def start_request(detokenizer: Detokenizer, number: int) -> Request:
    """Return a request with one token of output."""
    request = Request(number, (1,), SamplingParams(), frozenset(), 99)
    texts = detokenizer.handle(Outputs((Output(request, (65,), None),)))
    assert isinstance(texts, list)
    assert isinstance(texts[0], Texts)
    return request


def test_a_text_goes_with_its_request(byte_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    running = start_request(detokenizer, 0)
    for number in range(1, 50):
        start_request(detokenizer, number)  # which fails: nobody holds it any more
        gc.collect(0)
    assert set(detokenizer._growing_texts) <= {running.id, 49}


def test_a_text_stays_with_a_request_that_moves_to_another_lane(byte_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    request = start_request(detokenizer, 0)
    moved = replace(request, output_prefix=(65,))
    detokenizer.handle(Outputs((Output(moved, (66,), None),)))
    del request
    start_request(detokenizer, 1)
    assert 0 in detokenizer._growing_texts
