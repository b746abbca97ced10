"""Likelihoods of texts: options after a prompt, and long texts in windows."""

from collections.abc import Iterator, Sequence
from functools import partial

from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.client.calls.options import OnePrompt, TokenIds
from rekindle.client.calls.prompts import unanswered
from rekindle.client.requests import HasRequests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.scores.options import Option, Scores
from rekindle.results.scores.perplexity import Perplexity
from rekindle.scoring.computing import ScoredSequence, ScoringBar, score_all, scores_of
from rekindle.scoring.fitness import note_unfit


def score(
    session: HasRequests,
    prompt: OnePrompt = None,
    options: str | Sequence[str] = (),
    *,
    token_ids: TokenIds | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Scores]:
    """Compute the log-probabilities of one or more texts after a prompt, from the model without sampling parameters.

    The full pages of the prompt are computed once; the other options find them in the prefix cache. A text prompt and
    an option are tokenized together. An option therefore usually begins with a space, and trailing spaces of the prompt
    count as part of the option. After a conversation or token ids, options are tokenized separately.

    The call waits for all options, and for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        prompt: text or messages, as in `generate`.
        options: the texts to compare, or one text.
        token_ids: the token ids of the prompt, in place of text.
        cache_salt, adapter: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        `rekindle.Scores`, with the log-probabilities of each option in the order of the call.

    Raises:
        InvalidRequest: as in `generate`, or there are no options, or an option adds no tokens.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    checked = requests.prompt(prompt, {"token_ids": token_ids})
    bar = ScoringBar("scoring", "options", requests.draws_progress(progress))
    requests.check_predicts()
    note_unfit(requests, "score")
    texts = checks.long_texts("options", options)
    if not texts:
        raise InvalidRequest("options is empty; give at least one text")
    salt, adapter = checks.text("cache_salt", cache_salt, LONGEST_SALT), requests.adapter(adapter)
    requests.engine.check()
    sequences = yield from in_a_thread(
        partial(options_after, requests.engine.facts.preparer.prompts, checked, texts), "score"
    )
    answers = yield from score_all(requests, sequences, bar, salt, adapter)
    scores = [Option(text, scores_of(answer)) for text, answer in zip(texts, answers, strict=True)]
    return Scores(tuple(scores), sum(answer.cached_tokens for answer in answers))


def options_after(reader: PromptReader, prompt: Prompt, options: Sequence[str]) -> list[ScoredSequence]:
    """Return the tokens of the prompt followed by each option, and the index of the option's first token.

    A text prompt and its option are tokenized together, as in running text; trailing spaces of the prompt count as
    part of the option, as tokenizers attach them. After a conversation or token ids, options are tokenized separately,
    because a special token separates the two, or the tokens of the prompt are fixed.

    Raises:
        InvalidRequest: the model has no tokenizer, the prompt has no tokens, or an option adds no tokens.
    """
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so score() cannot tokenize the options")
    if isinstance(prompt, str):
        sequences = [tokenize_together(tokenizer, prompt, option) for option in options]
    else:
        prompt_ids = reader.token_ids(prompt)
        sequences = [
            ScoredSequence((*prompt_ids, *tokenizer.encode_chat(option)), len(prompt_ids)) for option in options
        ]
    for option, each in zip(options, sequences, strict=True):
        if not 0 < each.first < len(each.token_ids):
            raise InvalidRequest(
                f"the option {checks.preview(option)} adds no token after the prompt, so it has no score: the "
                "tokenizer joins the two, or the prompt has no tokens; most options begin with a space"
            )
    return sequences


def tokenize_together(tokenizer: Tokenizer, prompt: str, option: str) -> ScoredSequence:
    """Tokenize a text together with its continuation; the continuation is scored."""
    start = prompt.rstrip()
    return ScoredSequence(tuple(tokenizer.encode_open(prompt + option)), len(tokenizer.encode_open(start)))


def perplexity(
    session: HasRequests,
    text: OnePrompt = None,
    *,
    window: int | None = None,
    stride: int | None = None,
    token_ids: TokenIds | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Perplexity]:
    """Compute the perplexity of a text of any length under the model, and its bits per byte.

    The text is computed in overlapping windows. Each token except the first is scored once, in the first window with
    the token. The first token of the text is scored only if the tokenizer puts a special token before it.

    The call waits for all windows, and for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        text: the text, or a conversation for the chat template, which ends with its last message.
        window: the length of a window in tokens; the default is the longest possible request.
        stride: the distance between the starts of two windows, in tokens. A smaller stride gives each token a longer
            context and takes more time. The default is half of the window.
        token_ids: token ids in place of text; the result then has no bits per byte.
        cache_salt, adapter: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.Perplexity`, with the log-probability of each token.

    Raises:
        InvalidRequest: as in `generate`, or the text has fewer than two tokens, or a number is out of range.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    prompt = unanswered(requests.prompt(text, {"token_ids": token_ids}))
    reader = requests.engine.facts.preparer.prompts
    bar = ScoringBar("scoring", "windows", requests.draws_progress(progress))
    requests.check_predicts()
    note_unfit(requests, "score")
    most = reader.capacity - 1
    size = most if window is None else checks.integer("window", window, 2, most)
    step = size // 2 if stride is None else checks.integer("stride", stride, 1, size - 1)
    salt, adapter = checks.text("cache_salt", cache_salt, LONGEST_SALT), requests.adapter(adapter)
    requests.engine.check()
    if isinstance(prompt, tuple):
        ids = prompt
    else:
        ids = yield from in_a_thread(partial(_token_ids, reader, prompt), "score")
    if len(ids) < 2:
        raise InvalidRequest(f"a perplexity needs at least two tokens, but the text has {len(ids)}")
    sequences = list(windows(ids, size, step))
    answers = yield from score_all(requests, sequences, bar, salt, adapter)
    logprobs: list[TokenLogprob | None] = [None]
    for answer in answers:
        logprobs += scores_of(answer)
    size_of_text = len(prompt.encode()) if isinstance(prompt, str) else None
    return Perplexity(tuple(logprobs), len(sequences), size_of_text)


def windows(ids: Sequence[int], window: int, stride: int) -> Iterator[ScoredSequence]:
    """Yield windows of at most `window` tokens, each `stride` tokens after the previous one.

    Every token except the first is scored once, by the first window with the token.
    """
    begin = done = 0
    while done < len(ids):
        end = min(begin + window, len(ids))
        yield ScoredSequence(tuple(ids[begin:end]), max(1, done - begin))
        begin, done = begin + stride, end


def _token_ids(reader: PromptReader, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens of a prompt; text is tokenized as the beginning of a prompt."""
    if isinstance(prompt, str) and reader.tokenizer is not None:
        return tuple(reader.tokenizer.encode_open(prompt))
    return reader.token_ids(prompt)
