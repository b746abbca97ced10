"""Embeddings: hidden states of the last layer, pooled, truncated and normalized as the model's authors recommend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

import numpy as np

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import Shape
from rekindle.client.calls.options import OnePrompt, Prompts, TokenIds
from rekindle.client.calls.prompts import label_of
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.core.request.request import AnyPooling, Pooling, States
from rekindle.formats.checkpoints.uses import ConversationForm, Embedding
from rekindle.results.facts.settings import SamplingParams
from rekindle.scoring.computing import ScoringBar, wait_all
from rekindle.scoring.fitness import note_unfit
from rekindle.scoring.pairs import note_cuts
from rekindle.scoring.pooling import POOLINGS, pooled

Array = np.ndarray[Any, np.dtype[np.float32]]
SMALLEST_NORM = 1e-12
QUICK = 64
"""Vectors computed on the caller's loop."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class PooledStates:
    """Hidden states of several prompts.

    Attributes:
        rows: the pooled hidden state of each prompt after the final norm, shape (prompts, hidden), float64.
        prompt_tokens: the number of tokens of all prompts together.
    """

    rows: np.ndarray[Any, np.dtype[np.float64]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Checked options of `embed`, completed by the model's recommendations.

    Attributes:
        pooling: the selection of hidden states.
        normalize: whether to scale the embedding to length 1.
        dimensions: the number of leading components to keep.
        prompt_prefix: the instruction in front of each text, or its system message.
        model: the model's method, with dense layers after the pooling.
    """

    pooling: AnyPooling
    normalize: bool
    dimensions: int
    prompt_prefix: str
    model: Embedding

    @classmethod
    def of(
        cls, loaded_engine: LoadedEngine, pooling: Any, normalize: Any, dimensions: Any, instruction: Any
    ) -> "EmbedOptions":
        """Check the options of a call.

        Raises:
            InvalidRequest: an option is invalid, or the model's recommended method is not supported.
        """
        defaults, model = loaded_engine.checkpoint.uses.embedding, loaded_engine.model
        most = len(defaults.dense[-1].weight) if defaults.dense else model.hidden_size
        selection = _pooling_of(defaults, pooling, both_ways=model.both_ways)
        normalizes = checks.unless_none(checks.boolean)("normalize", normalize)
        if normalizes is None:
            normalizes = True if defaults.normalize is None else defaults.normalize
        size = most if dimensions is None else checks.integer("dimensions", dimensions, 1, most)
        return cls(selection, normalizes, size, prompt_prefix(defaults, instruction), defaults)


def _pooling_of(defaults: Embedding, pooling: Any, *, both_ways: bool) -> AnyPooling:
    """Return the pooling of a call: its own, or the model's.

    Raises:
        InvalidRequest: the pooling has no such name, or is not supported for the model.
    """
    if pooling is not None and pooling not in (*get_args(Pooling), *POOLINGS):
        expected = (
            'pooling must be "last" or "mean", or for a model that reads texts in both directions also "cls", "max", '
            '"mean_sqrt_len" or "weightedmean"'
        )
        raise InvalidRequest(f"{expected}, got {checks.preview(pooling)}")
    own: AnyPooling = pooling or defaults.pooling or ("mean" if both_ways else "last")
    reason = "" if pooling else defaults.unsupported_reason
    if own == "cls" and not both_ways:
        reason = 'the pooling "cls" is the first token, which sees nothing of the text behind it in a causal model'
    if not both_ways and not reason and own not in get_args(Pooling):
        reason = f'the pooling "{own}" is for models that read texts in both directions'
    if not both_ways and not pooling and not reason and not defaults.pools_prompt:
        reason = "its pooling leaves the instruction's tokens out (include_prompt is false)"
    if reason:
        whose = "pooling" if pooling else "the model recommends a method for embeddings that"
        raise InvalidRequest(
            f'{whose} is not supported: {reason}. Set pooling= to "last" or "mean" to embed without it'
        )
    return own


def prompt_prefix(defaults: Embedding, instruction: Any) -> str:
    """Return the text in front of each text: a prompt of the model by its name, or the instruction itself.

    Args:
        defaults: the model's recommendations, with its prompts by name.
        instruction: the name of a prompt, or a text of several words; None for the default prompt.

    Raises:
        InvalidRequest: the instruction is not a str, or is a single word without a prompt of this name.
    """
    name = defaults.default_prompt if instruction is None else checks.text("instruction", instruction)
    if not name:
        return ""
    if name in defaults.prompts:
        return defaults.prompts[name]
    if name.isidentifier():
        names = ", ".join(defaults.prompts) or "none"
        raise InvalidRequest(
            f"the model has no instruction named {name!r} (it has: {names}); an instruction as text has more than one "
            "word"
        )
    return name


def embed(
    session: HasRequests,
    texts: OnePrompt | Prompts = None,
    *,
    pooling: AnyPooling | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    instruction: str | None = None,
    token_ids: TokenIds | Sequence[TokenIds] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Array]:
    """Embed a text, or each text of a list, by the hidden states after the last layer and the final norm.

    Omitted options follow the model's files (`1_Pooling`, `modules.json` and `config_sentence_transformers.json`).
    Without these files, the default is the hidden state of the last token, scaled to length 1, or the mean for a model
    that reads texts in both directions.

    The call waits for all texts, and for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        texts: one text or conversation, or a list, as in `generate`. An empty list gives an array without rows.
        pooling: "last" takes the hidden state of the last token and reuses cached prefixes; "mean" takes the mean over
            all tokens, so every token is computed. Of models with texts read in both directions, "cls" takes the first
            token, "max" the greatest numbers, "weightedmean" a mean with the weights 1, 2, 3, ..., and "mean_sqrt_len"
            the sum divided by the root of the number of tokens.
        normalize: whether to scale each embedding to length 1.
        dimensions: the number of leading components to keep, for models trained for truncation. The embedding is
            truncated before it is scaled.
        instruction: the name of one of the model's prompts, such as "query", or the text itself, put before each text.
            The default is the model's `default_prompt_name`; "" puts nothing there, as token ids and messages need. For
            a model that takes texts as conversations, such as Qwen3-VL-Embedding, it is the system message, of
            messages too.
        token_ids: token ids in place of texts; of one text, or of several.
        chat_template_kwargs: additional variables of the chat template, for every conversation. The default of
            `add_generation_prompt` is False here, so a conversation ends with its last message.
        continue_final_message: whether the last message of every conversation stays open.
        cache_salt, adapter: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        Array of shape (dimensions,) for one text or (texts, dimensions) for a list, float32.

    Raises:
        InvalidRequest: as in `generate`, or an option is invalid, or the model's recommended method is not supported.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    options = EmbedOptions.of(requests.engine.facts, pooling, normalize, dimensions, instruction)
    bar = ScoringBar("embedding", "texts", requests.draws_progress(progress))
    prompts, several = requests.pooled_prompts(
        texts,
        {
            "token_ids": token_ids,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        },
    )
    if pooling is None:
        note_unfit(requests, "embed")
    form, own = options.model.messages, chat_template_kwargs or {}
    default = options.model.default_prompt if instruction is None else None
    instructed = [
        _instructed(prompt, options.prompt_prefix, default)
        if form is None or not isinstance(prompt, str | Conversation)
        else in_conversation(form, prompt, options.prompt_prefix, own, is_default=instruction is None)
        for prompt in prompts
    ]
    skipped = _skipped(options, requests.engine.facts)
    states = yield from last_states(
        requests, instructed, several, options.pooling, cache_salt, adapter, bar, skipped=skipped
    )
    embeddings = yield from _for_many(len(prompts), lambda: _embeddings(states.rows, options))
    return embeddings if several else embeddings[0]


def _skipped(options: EmbedOptions, facts: LoadedEngine) -> int:
    """Return the number of tokens of the prompt before each text that its pooling leaves out."""
    tokenizer = facts.checkpoint.tokenizer
    if options.model.pools_prompt or not options.prompt_prefix or tokenizer is None or options.pooling not in POOLINGS:
        return 0
    ids = tokenizer.encode(options.prompt_prefix)
    return len(ids) - (ids[-1] in tokenizer.special_ids)


def _embeddings(rows: np.ndarray[Any, np.dtype[np.float64]], options: EmbedOptions) -> Array:
    vectors = options.model.project(rows)[:, : options.dimensions]
    return (normalized(vectors) if options.normalize else vectors).astype(np.float32)


def _for_many(count: int, work: Callable[[], T]) -> Waits[T]:
    """Return the result of work on vectors, in a thread for many."""
    return (yield from in_a_thread(work, "embedding")) if count > QUICK else work()


def normalized(vectors: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return vectors scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray[Any, np.dtype[np.float64]] = vectors / np.maximum(lengths, SMALLEST_NORM)
    return unit


def last_states(
    requests: Requests,
    prompts: Sequence[Prompt | Exception],
    several: bool,
    pooling: AnyPooling,
    cache_salt: str,
    adapter: str | None,
    bar: ScoringBar,
    name_of: Callable[[int], str] = "prompt {}".format,
    skipped: int = 0,
) -> Waits[PooledStates]:
    """Return the pooled hidden state of each prompt.

    Args:
        requests: the requests of the session.
        prompts: the prompts.
        several: whether they were given as a list.
        pooling: the selection of hidden states.
        cache_salt, adapter: as in `embed`.
        bar: the progress bar.
        name_of: returns the name of a prompt in errors.
        skipped: the number of first tokens that a pooling of all tokens leaves out.
    """
    __tracebackhide__ = True
    requests.engine.check()
    salt = checks.text("cache_salt", cache_salt, LONGEST_SALT)
    params = SamplingParams(max_tokens=0, cache_salt=salt, adapter=requests.adapter(adapter))
    own = _states_of(pooling, skipped)
    batch = Batch(
        prompts=prompts,
        labels=[label_of(prompt, "") for prompt in prompts],
        variants=[params],
        shape=Shape(several, None),
        errors="raise",
        preparer=requests.engine.facts.preparer,
        submit=lambda prompt, params, _: requests.compute(prompt, params, own),
        name_of=name_of,
    )
    handles = yield from wait_all((yield from batch.start()), bar)
    if not handles:
        return PooledStates(np.zeros((0, requests.engine.facts.model.hidden_size)), 0)
    counts = [handle.record.standing.prompt_tokens or 0 for handle in handles]
    yield from note_cuts(requests, prompts, counts)
    records = [handle.record for handle in handles]
    if own == "tokens":
        rows = yield from _for_many(
            len(records), lambda: np.stack([pooled(record.token_states(), pooling, skipped) for record in records])
        )
    else:
        rows = yield from _for_many(len(records), lambda: np.stack([record.mean_state() for record in records]))
    return PooledStates(rows, sum(counts))


def _states_of(pooling: AnyPooling, skipped: int) -> States:
    """Return the hidden states of a step for a pooling: those of all tokens, unless the step has this pooling."""
    match pooling:
        case "cls" | "last" | "mean" if not skipped:
            return pooling
    return "tokens"


def in_conversation(
    form: ConversationForm,
    prompt: str | Sequence[Any] | Conversation,
    instruction: str,
    variables: Mapping[str, Any],
    *,
    is_default: bool = False,
) -> Conversation | InvalidRequest:
    """Return a text, or parts of a message, as a conversation in the form of a model's files.

    Args:
        form: the form.
        prompt: the text, the parts, or a whole conversation.
        instruction: the system message; empty for none.
        variables: variables of the template that replace those of the form.
        is_default: whether a system message of the conversation replaces the instruction, in place of an error.
    """
    chat = prompt if isinstance(prompt, Conversation) else Conversation([form.message("user", prompt)], None, {})
    messages = chat.messages
    if instruction and messages and messages[0]["role"] == "system":
        if not is_default:
            return InvalidRequest(
                "an instruction is the system message here, and the messages have one: give one of both"
            )
    elif instruction:
        messages = [form.message("system", instruction), *messages]
    own = {**chat.variables, **({} if chat.continue_final_message else form.variables), **variables}
    return replace(chat, messages=messages, variables=own)


def chat_by_default(
    model: Embedding, prompt: str | Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
    """Return the messages of a text in `embed`, or of messages, and the template's variables; None for plain texts."""
    if model.messages is None:
        return None
    whole = prompt if isinstance(prompt, str) else Conversation(prompt, None, {})
    chat = in_conversation(model.messages, whole, prompt_prefix(model, None), {}, is_default=True)
    assert isinstance(chat, Conversation), "a system message replaces the default"
    return list(chat.messages), chat.variables


def _instructed(prompt: Prompt | Exception, instruction: str, default: str | None) -> Prompt | Exception:
    """Return a text behind an instruction; `default` is the name of the model's own, if the call has none."""
    if not instruction or isinstance(prompt, Exception):
        return prompt
    if not isinstance(prompt, str):
        if default is not None:
            return InvalidRequest(
                f"the model puts its prompt {default!r}, {instruction!r:.80}, before texts, and not before messages "
                'and token ids: give texts, or instruction="" with the prompt among the tokens'
            )
        return InvalidRequest("an instruction applies to texts only; leave it out for messages and token ids")
    return instruction + prompt
