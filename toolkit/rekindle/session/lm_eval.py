"""Rekindle sessions as models of lm-eval, the evaluation harness; see `rekindle lm-eval`.

    from rekindle.session.lm_eval import RekindleLM

    lm_eval.simple_evaluate(model=RekindleLM(session=session), tasks=["arc_easy"])

This module needs the extra `rekindle-llm[lm-eval]`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from rekindle.core.concurrency.waits import blocked
from rekindle.core.content import short_digest
from rekindle.core.errors import ConfigError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.scoring.computing import ScoredSequence, ScoringBar, score_all, scores_of
from rekindle.session.opening import open_sync
from rekindle.session.session import Session
from rekindle.settings.engine import SettingsOptions

TORCH_DEFAULTS = ("cuda", "cuda:0")
"""Default devices of lm-eval."""
Pair = tuple[tuple[str, str] | None, Sequence[int], Sequence[int]]
"""A context and its continuation as texts (the cache key of a request), and the tokens of each."""


@register_model("rekindle")
class RekindleLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types, and is imported only here
    """Model of lm-eval for log-likelihoods and generation, backed by a session.

    Contexts shared by several requests are computed once. The engine forms batches without help from lm-eval.

    Args:
        pretrained: the model, as in `rekindle.open`.
        batch_size: an lm-eval option. A number above 1 sets `max_running`; other values leave batching to the engine.
        max_batch_size: an lm-eval option without effect.
        max_gen_toks: the default maximum of generated tokens per request.
        prefix_token_id: the id of the token in front of a text without context; the default is the tokenizer's BOS
            token, or its EOS token if it has no BOS token.
        session: an open session in place of a model; it stays open.
        **settings: as in `rekindle.open`. Device names of PyTorch are translated: "cuda:1" becomes "gpu:1". lm-eval's
            defaults, "cuda" and "cuda:0", leave the choice to JAX.
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
            raise ConfigError(f"an open session keeps its settings: leave out {', '.join(settings)}")
        self._session = open_sync(pretrained, **settings) if session is None else session
        self._name, self._max_gen_toks, self._prefix = pretrained, max_gen_toks, prefix_token_id

    @property
    def _tokens(self) -> Tokenizer:
        return self._session._tokenizer()

    @property
    def eot_token_id(self) -> int:
        """Id of the EOS token."""
        return self._token(self._tokens.eos_token)

    @property
    def prefix_token_id(self) -> int:
        """Id of the token in front of a text without context."""
        if self._prefix is not None:
            return self._prefix
        return self._token(self._tokens.bos_token or self._tokens.eos_token)

    @property
    def max_length(self) -> int:
        """Maximum tokens of context before a scored token; a request has room for it and one output token too."""
        return self._session._engine.facts.limits.max_context - 2

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in lm-eval's caches of rendered prompts, with a digest of the chat template."""
        return f"{self._name.replace('/', '__')}-{short_digest(self._tokens.chat_template)}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the model's chat template, or None if `chat_template` is False."""
        return self._tokens.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        """Return a conversation rendered by the chat template."""
        return self._session.render(chat_history, continue_final_message=not add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **further: Any) -> list[int]:
        """Return the tokens of a text.

        Args:
            add_special_tokens: whether to add the tokenizer's leading special tokens; None adds them unless the text
                begins with the BOS token.
            **further: ignored options of other lm-eval models.
        """
        tokenizer = self._tokens
        has_bos = tokenizer.bos_token is not None and string.startswith(tokenizer.bos_token)
        bare = has_bos if add_special_tokens is None else not add_special_tokens
        return tokenizer.encode_chat(string) if bare else tokenizer.encode_open(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **further: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether greedy decoding would produce it."""
        sequences = []
        for _, context, continuation in requests:
            ids = (*context, *continuation)[-(self.max_length + 1) :]
            sequences.append(ScoredSequence(ids, max(1, len(ids) - len(continuation))))
        bar = ScoringBar("scoring", "requests", not disable_tqdm)
        answers = blocked(score_all(self._session._requests, sequences, bar))
        likelihoods = []
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            scores = scores_of(answer)
            likely = sum(score.logprob for score in scores), all(score.rank == 1 for score in scores)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, likely)
            likelihoods.append(likely)
        return likelihoods

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, summed over windows without overlap."""
        windows = [list(self._windows(request.args[0])) for request in requests]
        parts = iter(self._loglikelihood_tokens([pair for of_text in windows for pair in of_text], disable_tqdm))
        totals = []
        for request, of_text in zip(requests, windows, strict=True):
            totals.append(sum(next(parts)[0] for _ in of_text))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the generated text for each context, up to a stop string of the request."""
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

    def _options(self, task_options: Mapping[str, Any]) -> dict[str, Any]:
        """Return Rekindle's sampling options for a task's generation options. Unknown options make `generate` fail."""
        options = dict(normalize_gen_kwargs(dict(task_options), self._max_gen_toks))
        samples, until = options.pop("do_sample"), options.pop("until")
        options["max_tokens"] = options.pop("max_gen_toks")
        options["stop"] = [text for text in until if text]
        if not samples:
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
            raise ConfigError("the tokenizer has no BOS or EOS token: pass prefix_token_id")
        token_id: int = token
        return token_id
