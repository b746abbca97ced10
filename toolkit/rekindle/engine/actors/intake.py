"""The intake actor: it turns text into token ids, and requests away that cannot be served."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

from rekindle.errors import InvalidRequest
from rekindle.messages import Admit, Cancel, Continued, Message, Prompt, Rejected, Submit, Withdraw
from rekindle.models.text.chat import render
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.request import Request, SamplingParams, check_bans, check_length, check_token_ids


class Intake:
    """Tokenizes and validates requests.

    Args:
        tokenizer: None for a model that is asked by token ids alone.
        vocab_size: the bound that token ids are below.
        eos_ids: the model's own end tokens.
        capacity: the most tokens, prompt and output together, that one request can have.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_ids: frozenset[int], capacity: int):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._capacity = capacity

    def handle(self, message: Message) -> Iterator[Message]:
        """Answer Submit with Admit or Rejected, and Cancel with Withdraw, which thereby stay in order."""
        match message:
            case Submit(request_id):
                try:
                    yield Admit(self._request(message))
                except Exception as error:  # any error is one request's, and the others go on
                    yield Rejected(request_id, error)
            case Cancel(request_id):
                yield Withdraw(request_id)
            case _:
                raise TypeError(f"the intake takes Submit and Cancel, got {message!r}")

    def _request(self, message: Submit) -> Request:
        params, ids = message.params, self._token_ids(message.prompt)
        check_length(ids, self._capacity)
        end_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self._eos_ids
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(53))  # so many bits survive JSON in any language
        if params.stop and self._tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so stop strings cannot be found; use stop_token_ids")
        request = Request(
            message.request_id,
            ids,
            params,
            end_ids,
            self._capacity,
            bad_words=self._bad_words(params),
            namespace=params.cache_salt,
            hold=message.hold,
        )
        check_bans(request, self._vocab_size)
        return request

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each word as it is written at the start of a text and after a space."""
        words: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            if not isinstance(word, str):
                words[word] = None
            elif self._tokenizer is None:
                raise InvalidRequest("the model has no tokenizer, so bad_words must be sequences of token ids")
            else:
                stripped = word.lstrip()
                spellings = (stripped, " " + stripped) if word == stripped else (" " + stripped,)
                words.update((tuple(self._tokenizer.encode_chat(spelling)), None) for spelling in spellings)
        return tuple(filter(None, words))  # a word without a token bans nothing

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, tuple):
            return check_token_ids("token_ids", prompt, self._vocab_size)
        if isinstance(prompt, Continued):
            return self._token_ids(prompt.prefix) + self._more(prompt.more)
        if self._tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so it takes token_ids=[...] rather than text")
        if isinstance(prompt, str):
            return check_token_ids("prompt", self._tokenizer.encode(prompt), self._vocab_size)
        tokenizer = self._tokenizer
        rendered = render(
            prompt.messages,
            tokenizer.chat_template,
            tokenizer.bos_token,
            tokenizer.eos_token,
            prompt.tools,
            prompt.variables,
        )
        return check_token_ids("messages", tokenizer.encode_chat(rendered), self._vocab_size)

    def _more(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of a continuation, without those that the tokenizer puts around a whole prompt."""
        if isinstance(prompt, str) and self._tokenizer is not None:
            return tuple(self._tokenizer.encode_chat(prompt))
        return self._token_ids(prompt)
