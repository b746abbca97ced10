"""A session as a model of lm-eval, the evaluation harness; see `rekindle lm-eval`.

    from rekindle.session.lm_eval import RekindleLM

    lm_eval.simple_evaluate(model=RekindleLM(session=session), tasks=["arc_easy"])

This module needs the extra `rekindle[lm-eval]`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from rekindle.core.checkpoints.embedded import NAME
from rekindle.core.concurrency.waits import blocked
from rekindle.core.config import SettingsOptions
from rekindle.core.errors import ConfigError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.scoring.computing import ScoredSequence, ScoringBar, scored, scores_of
from rekindle.session.opening import open_sync
from rekindle.session.session import Session

TORCH_DEFAULTS = ("cuda", "cuda:0")
"""What lm-eval says of a device where its user says nothing."""
Pair = tuple[tuple[str, str] | None, Sequence[int], Sequence[int]]
"""A context and its continuation as texts, which name a request in caches, and the tokens of each."""


@register_model("rekindle")
class RekindleLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types, and is imported only here
    """A session that lm-eval asks for log-likelihoods and for texts.

    Contexts that several requests begin with are computed once. The engine makes its own batches.

    Args:
        pretrained: the model, as `rekindle.open` takes it.
        batch_size: lm-eval gives one to all models. A number above 1 is `max_running`; others leave that to the engine.
        max_batch_size: lm-eval gives it to all models; with a batch size of its own the engine has no use for it.
        max_gen_toks: how many tokens are generated for a request that does not say.
        prefix_token_id: the token before a text without a context; the default is the tokenizer's first special token,
            or else its last.
        session: a session that is open, instead of a model; it stays open.
        **settings: as of `rekindle.open`. lm-eval gives torch's name of a device to all models: "cuda:1" is "gpu:1"
            here, and its default, "cuda:0", leaves the choice to JAX.
    """

    def __init__(
        self,
        pretrained: str = NAME,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_gen_toks: int = 256,
        prefix_token_id: int | None = None,
        session: Session | None = None,
        **settings: Unpack[SettingsOptions],
    ):
        super().__init__()
        rows = str(batch_size)
        if rows.isdigit() and int(rows) > 1:
            settings = {"max_running": int(rows), **settings}
        device = settings.pop("device", None)
        if device not in (None, *TORCH_DEFAULTS):
            settings["device"] = device.replace("cuda", "gpu") if isinstance(device, str) else device
        if session is not None and settings:
            raise ConfigError(f"a session that is open has its settings already: leave out {', '.join(settings)}")
        self._session = open_sync(pretrained, **settings) if session is None else session
        self._name, self._max_gen_toks, self._prefix = pretrained, max_gen_toks, prefix_token_id

    @property
    def _tokens(self) -> Tokenizer:
        return self._session._tokenizer()

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._token(self._tokens.eos_token)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without a context."""
        if self._prefix is not None:
            return self._prefix
        return self._token(self._tokens.bos_token or self._tokens.eos_token)

    @property
    def max_length(self) -> int:
        """The most tokens before one that is scored: a request has room for that one, and for one of output."""
        return self._session._loaded_engine.limits.max_context - 2

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer in lm-eval's caches."""
        return self._name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the model's chat template, if one is to be used."""
        return self._tokens.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        """Return a conversation as the model reads it."""
        return self._session.render(chat_history, continue_final_message=not add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **further: Any) -> list[int]:
        """Return the tokens of a text.

        Args:
            add_special_tokens: whether the special tokens before a text are among them; None for those that are not in
                the text itself.
            further: of other models of lm-eval.
        """
        tokenizer = self._tokens
        begun = tokenizer.bos_token is not None and string.startswith(tokenizer.bos_token)
        bare = begun if add_special_tokens is None else not add_special_tokens
        return tokenizer.encode_chat(string) if bare else tokenizer.encode_open(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **further: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether each of its tokens is the likeliest."""
        asked = []
        for _, context, continuation in requests:
            ids = (*context, *continuation)[-(self.max_length + 1) :]
            asked.append(ScoredSequence(ids, max(1, len(ids) - len(continuation))))
        answers = blocked(scored(self._session._requests, asked, ScoringBar("scoring", "requests", not disable_tqdm)))
        likelihoods = []
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            scores = scores_of(answer)
            likely = sum(score.logprob for score in scores), all(score.rank == 1 for score in scores)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, likely)
            likelihoods.append(likely)
        return likelihoods

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, in windows without overlap."""
        windows = [list(self._windows(request.args[0])) for request in requests]
        parts = iter(self._loglikelihood_tokens([pair for of_text in windows for pair in of_text], disable_tqdm))
        totals = []
        for request, of_text in zip(requests, windows, strict=True):
            totals.append(sum(next(parts)[0] for _ in of_text))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return what the model writes after each context, until one of the texts that the request names."""
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(place)
        texts = [""] * len(requests)
        for places in groups.values():
            options = self._options(requests[places[0]].args[1])
            room = max(1, self.max_length + 1 - options["max_tokens"])
            prompts = [self.tok_encode(requests[place].args[0])[-room:] for place in places]
            answers = self._session.generate_sync(token_ids=prompts, progress=not disable_tqdm, **options)
            for place, answer in zip(places, answers, strict=True):
                texts[place] = answer.text
                self.cache_hook.add_partial("generate_until", requests[place].args, answer.text)
        return texts

    def _options(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return sampling keywords for what a task says of generation; what is none of them is refused by the call."""
        options = dict(normalize_gen_kwargs(dict(said), self._max_gen_toks))
        draws, until = options.pop("do_sample"), options.pop("until")
        options["max_tokens"] = options.pop("max_gen_toks")
        options["stop"] = [text for text in until if text]
        if not draws:
            options["temperature"] = 0.0
        return options

    def _windows(self, text: str) -> Iterator[Pair]:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return ((None, *make_disjoint_window(window)) for window in windows)

    def _token(self, text: str | None) -> int:
        token = None if text is None else self._tokens.backend.token_to_id(text)
        if token is None:
            raise ConfigError("the tokenizer names no token that begins or ends a text: give prefix_token_id")
        found: int = token
        return found
