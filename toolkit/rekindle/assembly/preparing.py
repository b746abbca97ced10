"""Preparation of requests: prompts are rendered and tokenized, and requests validated."""

import math
import secrets
from dataclasses import dataclass, replace

from rekindle.assembly.looking import Looks
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, Conversation, Prompt, Submit, Verbatim, goes_on
from rekindle.core.request.activations.changes import changes_of
from rekindle.core.request.constraint import Constrained, Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import (
    Request,
    check_bans,
    check_count,
    check_length,
    check_scored,
    check_token_ids,
    namespace_of,
)
from rekindle.core.request.thoughts import ThoughtLimit
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.masks import run_steps
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.rendering.chat import render
from rekindle.formats.responses.thoughts import check_closing, thought_limit

TOKENIZED_AT_ONCE = 2
"""Requests tokenized at once, each in a worker thread."""
ROOM = 256
"""Tokens of output beside a cut prompt, for output without a limit."""
QUICK = 4096
"""Largest count of numbers in a submission without texts that surely takes less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns submissions into validated requests of one model, for the intake and the tokenizer. Thread-safe.

    Attributes:
        tokenizer: the tokenizer; None for a model that takes token ids only.
        vocab_size: number of token ids.
        eos_ids: end tokens of the model.
        capacity: most tokens in one request, prompt and output together.
        compiler: compiler of constraints; None without a tokenizer.
        sizes: the number of layers, and the size of their residual stream.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    eos_ids: frozenset[int]
    capacity: int
    compiler: Compiler | None = None
    sizes: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, model: Checkpoint, capacity: int) -> "Preparer":
        """Return the preparer for a model."""
        vocabulary = model.config.vocab_size
        compiler = None if model.tokenizer is None else Compiler(model.tokenizer, vocabulary, model.eos_ids)
        sizes = len(model.config.layers), model.config.hidden_size
        return cls(model.tokenizer, vocabulary, model.eos_ids, capacity, compiler, sizes)

    @property
    def looks(self) -> Looks:
        """The looks at sequences of the model."""
        return Looks(self.capacity, *self.sizes)

    def is_quick(self, submit: Submit) -> bool:
        """Return True if `outcome` takes less than a millisecond: no text to tokenize, and no long list."""
        params = submit.params
        if params.constraint is not None:
            return False
        words = sum(math.inf if isinstance(word, str) else len(word) for word in params.bad_words)
        lists = (params.logit_bias, params.allowed_token_ids or (), params.stop_token_ids)
        return _numbers(submit.prompt) + words + sum(map(len, lists)) <= QUICK

    def outcome(self, submit: Submit) -> Request | Exception:
        """Return the request of a submission, or the error that makes it impossible to serve."""
        try:
            ids = self.cut(self.token_ids(submit.prompt, submit.params), submit.params)
            check_length(ids + submit.output_prefix.token_ids, self.capacity, submit.params.max_tokens != 0)
            check_scored(ids, submit.params)
            return self._request(submit, ids)
        except Exception as error:  # any error, even of the model's chat template, belongs to one request
            return error

    def check(self, params: SamplingParams) -> None:
        """Validate parameters for this model's tokenizer and end tokens.

        Raises:
            InvalidRequest: the parameters cannot be served with any prompt.
        """
        self._request(Submit(0, (), params), ())

    def token_ids(self, prompt: Prompt, params: SamplingParams | None = None) -> tuple[int, ...]:
        """Return the token ids of a prompt of any kind.

        Args:
            prompt: the prompt.
            params: the parameters of a request with the prompt, so that a text too long for it is not read whole; None
                for a prompt of any length.

        Raises:
            InvalidRequest: the prompt cannot be tokenized, is empty, or has a token outside the vocabulary.
            PromptTooLong: a text does not fit.
        """
        if isinstance(prompt, tuple):
            return check_token_ids("token_ids", prompt, self.vocab_size)
        if isinstance(prompt, Continued):
            return self.token_ids(prompt.prefix, params) + self._more(prompt.more, params)
        name = "messages" if isinstance(prompt, Conversation) else "prompt"
        return check_token_ids(name, self._encoded(*self._text(prompt), params), self.vocab_size)

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt of any kind.

        Raises:
            InvalidRequest: as in `token_ids`.
        """
        if isinstance(prompt, tuple | Continued):
            return len(self.token_ids(prompt))
        text, adds_special = self._text(prompt)
        return self._text_tokenizer().count(text, adds_special) or len(self.token_ids(prompt))

    def _text(self, prompt: str | Conversation) -> tuple[str, bool]:
        """Return the text of a prompt, and True if the tokenizer adds its special tokens to it."""
        if isinstance(prompt, Conversation):
            return self.rendered(prompt), False
        return prompt, not isinstance(prompt, Verbatim)

    def _text_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so it takes token_ids=[...] rather than text")
        return self.tokenizer

    def _encoded(self, text: str, adds_special: bool, params: SamplingParams | None) -> list[int]:
        """Return the tokens of a text, or those that `cut` will keep and some more.

        Raises:
            PromptTooLong: the text does not fit.
        """
        tokenizer = self._text_tokenizer()
        if params is None:
            return tokenizer.encode(text, adds_special)
        most = params.truncate_prompt_tokens
        if most is not None:
            at_end = params.truncation_side == "left"
            text = tokenizer.near(text, self.capacity if most == -1 else most, at_end=at_end)
            return tokenizer.encode(text, adds_special)
        has_output = params.max_tokens != 0
        check_count(tokenizer.fewest(text, self.capacity), self.capacity, has_output, at_least=True)
        return tokenizer.encode(text, adds_special, lambda count: check_count(count, self.capacity, has_output))

    def cut(self, ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens of a prompt, cut to `truncate_prompt_tokens` if there are more."""
        most = params.truncate_prompt_tokens
        if most == -1:
            most = self.capacity - min(self._room(len(ids), params.max_tokens), self.capacity // 2)
        if most is None or len(ids) <= most:
            return ids
        if params.truncation_side == "right":
            return ids[:most]
        opening = () if self.tokenizer is None else tuple(self.tokenizer.opening_ids)
        start = opening if ids[: len(opening)] == opening and len(opening) < most else ()
        return start + ids[len(ids) - most + len(start) :]

    def _room(self, length: int, most: int | None) -> int:
        """Return the number of tokens of output, at most `most`, to leave room for when a prompt of a length is cut."""
        if most is not None:
            return most
        return 1 if length < self.capacity else ROOM  # a whole prompt is not cut for a longer answer

    def rendered(self, chat: Conversation) -> str:
        """Render a conversation by the chat template.

        Raises:
            InvalidRequest: the model has no chat template, or the template rejects the conversation.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, and so no chat template; it takes token_ids=[...]")
        return render(
            chat.messages,
            tokenizer.chat_template if chat.tools is None else tokenizer.template_with_tools,
            tokenizer.bos_token,
            tokenizer.eos_token,
            chat.tools,
            chat.variables,
            chat.continue_final_message,
        )

    def _request(self, submit: Submit, ids: tuple[int, ...]) -> Request:
        params = submit.params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(53))  # 53 bits survive JSON in any language
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so stop strings cannot be found; use stop_token_ids")
        if not params.skip_special_tokens and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so there is no text: leave out skip_special_tokens")
        changes = changes_of(params.steer, params.patch, len(ids), self.sizes) if ids else None
        if params.capture is not None and ids:
            self.looks.check_capture(params.capture, len(ids), params.max_tokens)
        request = Request(
            submit.request_id,
            ids,
            params,
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self.eos_ids,
            self.capacity,
            bad_words=self._bad_words(params),
            namespace=namespace_of(params.cache_salt, submit.adapter, changes),
            hold=submit.hold,
            output_prefix=submit.output_prefix.token_ids,
            pooling=submit.pooling,
            goes_on=goes_on(submit.prompt) or params.constraint is not None,
            adapter=submit.adapter,
            changes=changes,
            repetition=submit.repetition,
            thoughts=self._thoughts(submit, ids),
            turn=submit.turn,
            synthetic=submit.synthetic,
        )
        check_bans(request, self.vocab_size)
        check_closing(request)
        return request if params.constraint is None else self._constrained(request, params.constraint)

    def _thoughts(self, submit: Submit, ids: tuple[int, ...]) -> ThoughtLimit | None:
        """Return the limit of thoughts in the answer to a prompt, or None.

        Raises:
            InvalidRequest: the model has no thoughts.
        """
        budget = submit.params.thinking_budget
        if budget is None:
            return None
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so thinking_budget finds no thoughts")
        tools = submit.turn is not None and bool(submit.turn.tools)
        return thought_limit(self.tokenizer, budget, ids, tools, self.vocab_size)

    def _constrained(self, request: Request, constraint: Constraint) -> Request:
        """Apply a constraint to a request.

        Raises:
            InvalidRequest: the constraint cannot be compiled, or does not allow the given beginning of the output.
            ConstraintFailed: the constraint allows nothing after this beginning, but the request needs more.
        """
        if self.compiler is None:
            raise InvalidRequest(f"the model has no tokenizer, so {constraint.kind} cannot be served")
        grammar = self.compiler.compile(constraint)
        return replace(request, constrained=Constrained(grammar, run_steps(grammar.matcher(request).start())))

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each word, encoded at the start of a text and after a space."""
        words: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            if not isinstance(word, str):
                words[word] = None
            elif self.tokenizer is None:
                raise InvalidRequest("the model has no tokenizer, so bad_words must be sequences of token ids")
            else:
                stripped = word.lstrip()
                spellings = (stripped, " " + stripped) if word == stripped else (" " + stripped,)
                words.update((tuple(self.tokenizer.encode_chat(spelling)), None) for spelling in spellings)
        # A word without tokens bans nothing, and a word with an unknown token is never generated.
        return tuple(word for word in words if word and max(word) < self.vocab_size)

    def _more(self, prompt: Prompt, params: SamplingParams | None) -> tuple[int, ...]:
        """Return the tokens of a continuation, without the tokenizer's tokens around a whole prompt."""
        if isinstance(prompt, str) and self.tokenizer is not None:
            return tuple(self._encoded(prompt, False, params))
        return self.token_ids(prompt, params)


def _numbers(prompt: Prompt) -> float:
    """Return the number of token ids in a prompt; infinity for a prompt with text."""
    match prompt:
        case tuple():
            return len(prompt)
        case Continued(prefix, more):
            return _numbers(prefix) + _numbers(more)
    return math.inf
