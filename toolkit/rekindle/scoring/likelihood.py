"""How likely texts are: options after a prompt, and long texts window by window."""

from collections.abc import Iterator, Sequence
from functools import partial

from rekindle.client.prompts import OnePrompt, TokenIds
from rekindle.client.requests import Asker
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.engine.preparing import Preparer
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import LONGEST_SALT
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.scores.options import Option, Scores
from rekindle.results.scores.perplexity import Perplexity
from rekindle.scoring.computing import ScoredSequence, ScoringBar, scored, scores_of


def score(
    session: Asker,
    prompt: OnePrompt = None,
    options: str | Sequence[str] = (),
    *,
    token_ids: TokenIds | None = None,
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[Scores]:
    """Return how likely each of some texts is after a prompt, by the model alone, without sampling parameters.

    The prompt is computed once, as far as whole pages go, and found in the prefix cache for the other options.

    A text and an option are tokenized together, so an option usually begins with a space; spaces at the end of
    the text count as the beginning of each option. An option after a conversation or token ids is tokenized by
    itself.

    Args:
        prompt: text or messages, as in `generate`.
        options: the texts to compare, or one.
        token_ids: a prompt of token ids instead.
        cache_salt: as in `SamplingParams`.
        progress: draw a bar if it takes longer than a second.

    Raises:
        InvalidRequest: as `generate`, or there are no options, or one has no tokens of its own.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    requests = session._requests
    given = requests.prompt(prompt, {"token_ids": token_ids})
    bar = ScoringBar("scoring", "options", requests.draws(progress))
    requests.check_predicts()
    texts = checks.long_texts("options", options)
    if not texts:
        raise InvalidRequest("options is empty; give at least one text")
    salt = checks.text("cache_salt", cache_salt, LONGEST_SALT)
    requests.check_engine()
    asked = yield from in_a_thread(partial(options_after, requests.loaded_engine.preparer, given, texts), "score")
    answers = yield from scored(requests, asked, bar, salt)
    made = [Option(text, scores_of(answer)) for text, answer in zip(texts, answers, strict=True)]
    return Scores(tuple(made), sum(answer.cached_tokens for answer in answers))


def options_after(preparer: Preparer, prompt: Prompt, options: Sequence[str]) -> list[ScoredSequence]:
    """Return the tokens of a prompt with each option, and where those of the option begin.

    A text and its option are tokenized together, so that they meet as they would in one text; spaces at the end of the
    text count as the beginning of the option, as tokenizers have them. What follows a conversation or token ids is
    tokenized by itself, because a special token stands between them or the tokens are given.

    Raises:
        InvalidRequest: the model has no tokenizer, the prompt has no tokens, or an option has none of its own.
    """
    tokenizer = preparer.tokenizer
    if tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so it takes no options of text")
    if isinstance(prompt, str):
        made = [together(tokenizer, prompt, option) for option in options]
    else:
        known = preparer.token_ids(prompt)
        made = [ScoredSequence((*known, *tokenizer.encode_chat(option)), len(known)) for option in options]
    for option, each in zip(options, made, strict=True):
        if not 0 < each.first < len(each.token_ids):
            raise InvalidRequest(
                f"nothing is to be scored of the option {checks.preview(option)}: it has no token of its own after the "
                "prompt. The tokenizer joins the two there, or the prompt has none; most options begin with a space"
            )
    return made


def together(tokenizer: Tokenizer, prompt: str, option: str) -> ScoredSequence:
    """Return the tokens of a text and its continuation, tokenized together."""
    start = prompt.rstrip()
    return ScoredSequence(tuple(tokenizer.encode_open(prompt + option)), len(tokenizer.encode_open(start)))


def perplexity(
    session: Asker,
    text: OnePrompt = None,
    *,
    window: int | None = None,
    stride: int | None = None,
    token_ids: TokenIds | None = None,
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[Perplexity]:
    """Return how well the model predicts a text of any length: its perplexity, and its bits per byte.

    The text is computed in windows that overlap. Each token but the first is scored once, by the first window that
    has it. The first has no probability, unless the tokenizer puts a special token before it.

    Args:
        text: the text, or a conversation as the chat template writes it.
        window: how many tokens a window has; the default is the most that a request may have.
        stride: how many tokens a window begins after the last one; less gives each token a longer context, and
            takes more time. The default is half of the window.
        token_ids: token ids instead of a text; they have no bits per byte.
        cache_salt: as in `SamplingParams`.
        progress: draw a bar if it takes longer than a second.

    Raises:
        InvalidRequest: as `generate`, or there are fewer than two tokens, or a number is out of its range.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    requests = session._requests
    prompt, preparer = requests.prompt(text, {"token_ids": token_ids}), requests.loaded_engine.preparer
    bar = ScoringBar("scoring", "windows", requests.draws(progress))
    requests.check_predicts()
    most = preparer.capacity - 1
    size = most if window is None else checks.integer("window", window, 2, most)
    step = size // 2 if stride is None else checks.integer("stride", stride, 1, size - 1)
    salt = checks.text("cache_salt", cache_salt, LONGEST_SALT)
    requests.check_engine()
    ids = prompt if isinstance(prompt, tuple) else (yield from in_a_thread(partial(_open, preparer, prompt), "score"))
    if len(ids) < 2:
        raise InvalidRequest(f"a perplexity needs at least two tokens, the text has {len(ids)}")
    asked = list(windows(ids, size, step))
    answers = yield from scored(requests, asked, bar, salt)
    logprobs: list[TokenLogprob | None] = [None]
    for answer in answers:
        logprobs += scores_of(answer)
    size_of_text = len(prompt.encode()) if isinstance(prompt, str) else None
    return Perplexity(tuple(logprobs), len(asked), size_of_text)


def windows(ids: Sequence[int], window: int, stride: int) -> Iterator[ScoredSequence]:
    """Yield windows of at most `window` tokens that score every token but the first once.

    Each begins `stride` tokens after the last one, and scores the tokens that the last one had not.
    """
    begin = done = 0
    while done < len(ids):
        end = min(begin + window, len(ids))
        yield ScoredSequence(tuple(ids[begin:end]), max(1, done - begin))
        begin, done = begin + stride, end


def _open(preparer: Preparer, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens of a text as the beginning of a prompt has them, and those of any other prompt as they are."""
    if isinstance(prompt, str) and preparer.tokenizer is not None:
        return tuple(preparer.tokenizer.encode_open(prompt))
    return preparer.token_ids(prompt)
