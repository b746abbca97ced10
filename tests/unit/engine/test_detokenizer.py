"""Texts of failed requests do not stay in the detokenizer, though no output tells their end."""

import gc
from dataclasses import replace

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.messages import Output, Outputs, Rejected, Stopped, Texts
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


def test_a_decoder_that_breaks_down_ends_its_request_alone() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, " ": 2}, unk_token="a"))
    backend.decoder = decoders.Strip(" ", 0, 5)  # looks behind the start of a token of spaces
    detokenizer = Detokenizer(Tokenizer(backend))
    failing, other = (Request(number, (1,), SamplingParams(), frozenset(), 99) for number in range(2))
    messages = detokenizer.handle(Outputs((Output(failing, (2,), None), Output(other, (1,), None))))
    assert isinstance(messages, list)
    texts, rejected, stopped = messages
    assert isinstance(texts, Texts)
    assert [(text.request_id, text.text) for text in texts.texts] == [(1, "b")]
    assert isinstance(rejected, Rejected)
    assert rejected.request_id == 0
    assert "the model's tokenizer cannot take" in str(rejected.error)
    assert stopped == Stopped(0, 1)
    assert detokenizer.handle(Outputs((Output(failing, (1,), None),))) == []
    assert detokenizer.handle(Outputs((Output(failing, (1,), "stop"),))) == []
    assert set(detokenizer._growing_texts) == {1}
    last = detokenizer.handle(Outputs((Output(failing, (2,), "stop"),)))
    assert [type(message) for message in last] == [Rejected]  # type: ignore[union-attr]
