"""Preparation of requests: prompts are rendered and tokenized, and requests validated."""

import math
import secrets
from dataclasses import dataclass, replace

from rekindle.assembly.looking import Looks
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.assembly.preparing.request_checks import check_bans, check_scored
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, PicturedTokens, Prompt, Submit, goes_on
from rekindle.core.request.activations.changes import changes_of
from rekindle.core.request.constraint import Constrained, Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request, check_length, namespace_of
from rekindle.core.request.thoughts import ThoughtLimit
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.masks import run_steps
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint

TOKENIZED_AT_ONCE = 2
"""Requests tokenized at once, each in a worker thread."""
QUICK = 4096
"""Largest count of numbers in a submission without texts that surely takes less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns submissions into validated requests of one model, for the intake and the tokenizer. Thread-safe.

    Attributes:
        prompts: the reader of prompts.
        eos_ids: end tokens of the model.
        compiler: compiler of constraints; None without a tokenizer.
        looks: the looks at sequences of the model.
    """

    prompts: PromptReader
    eos_ids: frozenset[int]
    compiler: Compiler | None
    looks: Looks

    @classmethod
    def of(cls, model: Checkpoint, capacity: int, picture_rows: int = 0) -> "Preparer":
        """Return the preparer for a model."""
        compiler = None
        if model.tokenizer is not None:
            compiler = Compiler(model.tokenizer, model.config.vocab_size, model.eos_ids)
        width = 0 if model.vision is None else model.vision.config.width
        looks = Looks(capacity, len(model.config.layers), model.config.hidden_size, width)
        return cls(PromptReader.of(model, capacity, picture_rows), model.eos_ids, compiler, looks)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None for a model that takes token ids only."""
        return self.prompts.tokenizer

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
            prompt = self.prompts.read(submit.prompt, submit.params)
            tokens, has_output = prompt.ids + submit.output_prefix.token_ids, submit.params.max_tokens != 0
            check_length(tokens, self.prompts.capacity, has_output)
            check_scored(prompt.ids, submit.params)
            if prompt.pictures and submit.params.capture is not None:
                raise InvalidRequest.of(
                    "capture", "capture is for prompts of text: call session.look(prompt, images=[...]) for images"
                )
            return replace(self._request(submit, prompt.ids), pictures=prompt.pictures)
        except Exception as error:  # any error, even of the model's chat template, belongs to one request
            return error

    def check(self, params: SamplingParams) -> None:
        """Validate parameters for this model's tokenizer and end tokens.

        Raises:
            InvalidRequest: the parameters cannot be served with any prompt.
        """
        self._request(Submit(0, (), params), ())

    def _request(self, submit: Submit, ids: tuple[int, ...]) -> Request:
        params = submit.params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(53))  # 53 bits survive JSON in any language
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so stop strings cannot be found; use stop_token_ids")
        if not params.skip_special_tokens and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so there is no text: leave out skip_special_tokens")
        changes = (
            changes_of(params.steer, params.patch, len(ids), (self.looks.layers, self.looks.hidden)) if ids else None
        )
        if params.capture is not None and ids:
            self.looks.check_capture(params.capture, len(ids), params.max_tokens)
        request = Request(
            submit.request_id,
            ids,
            params,
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self.eos_ids,
            self.prompts.capacity,
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
        check_bans(request, self.prompts.vocab_size)
        if request.thoughts is not None:
            from rekindle.formats.responses.thoughts import check_closing

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
        from rekindle.formats.responses.thoughts import thought_limit

        tools = submit.turn is not None and bool(submit.turn.tools)
        return thought_limit(self.tokenizer, budget, ids, tools, self.prompts.vocab_size)

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
        return tuple(word for word in words if word and max(word) < self.prompts.vocab_size)


def _numbers(prompt: Prompt) -> float:
    """Return the number of token ids in a prompt; infinity for a prompt with text."""
    match prompt:
        case tuple():
            return len(prompt)
        case PicturedTokens(ids):
            return len(ids)
        case Continued(prefix, more):
            return _numbers(prefix) + _numbers(more)
    return math.inf
