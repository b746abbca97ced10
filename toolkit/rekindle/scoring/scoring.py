"""What a session's methods of scoring do, for those that await and those that block."""

from typing import Any

from rekindle.client.prompts import one_prompt
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.engine.assembly import Assembly
from rekindle.core.request import checks
from rekindle.results.scores.options import Scores
from rekindle.results.scores.perplexity import Perplexity
from rekindle.results.scores.ranking import Ranking
from rekindle.scoring import embedding, judging, likelihood
from rekindle.scoring.computing import Bar
from rekindle.scoring.embedding import Array, EmbedOptions


class Scoring:
    """Checks the calls of one session that generate nothing, and returns the waits for them.

    Args:
        progress: whether to draw how far a call is, where it does not say.
    """

    def __init__(self, requests: Requests, assembly: Assembly, progress: bool):
        self._requests, self._assembly, self._progress = requests, assembly, progress

    def embed(
        self,
        texts: Any,
        token_ids: Any,
        pooling: Any,
        normalize: Any,
        dimensions: Any,
        instruction: Any,
        cache_salt: Any,
        progress: Any,
    ) -> Waits[Array]:
        """Return the wait for `Session.embed`."""
        options = EmbedOptions.of(self._assembly, pooling, normalize, dimensions, instruction)
        bar = self._bar("embedding", "texts", progress)
        return embedding.embed(self._requests, self._assembly, texts, token_ids, options, cache_salt, bar)

    def score(self, prompt: Any, options: Any, token_ids: Any, cache_salt: Any, progress: Any) -> Waits[Scores]:
        """Return the wait for `Session.score`."""
        prompts, several = self._requests.prompts(prompt, {"token_ids": token_ids})
        bar = self._bar("scoring", "options", progress)
        checked = one_prompt(prompts, several)
        return likelihood.score(self._requests, self._assembly.preparer, checked, options, cache_salt, bar)

    def perplexity(
        self, text: Any, token_ids: Any, window: Any, stride: Any, cache_salt: Any, progress: Any
    ) -> Waits[Perplexity]:
        """Return the wait for `Session.perplexity`."""
        prompts, several = self._requests.prompts(text, {"token_ids": token_ids})
        bar = self._bar("scoring", "windows", progress)
        checked = one_prompt(prompts, several)
        return likelihood.perplexity(self._requests, self._assembly.preparer, checked, window, stride, cache_salt, bar)

    def classify(self, texts: Any, token_ids: Any, progress: Any) -> Waits[Any]:
        """Return the wait for `Session.classify`."""
        return judging.classify(
            self._requests, self._assembly, texts, token_ids, self._bar("classifying", "texts", progress)
        )

    def rerank(self, query: Any, documents: Any, instruction: Any, progress: Any) -> Waits[Ranking]:
        """Return the wait for `Session.rerank`."""
        bar = self._bar("ranking", "documents", progress)
        return judging.rerank(self._requests, self._assembly, query, documents, instruction, bar)

    def _bar(self, stage: str, unit: str, progress: Any) -> Bar:
        drawn = checks.unless_none(checks.boolean)("progress", progress)
        return Bar(stage, unit, self._progress if drawn is None else drawn)
