"""Options of prompts, for `-o` and for keyword arguments."""

from typing import Any, Final

import llm
from pydantic import Field

MAX_TOKENS: Final = 1024
"""The most tokens of an answer by default, as in `rekindle chat`."""


class Options(llm.Options):  # type: ignore[misc]  # llm is imported only here, in an extra
    """Sampling parameters of `rekindle.SamplingParams`; absent ones have the defaults of a chat with the model."""

    max_tokens: int | None = Field(None, description=f"the most tokens of the answer ({MAX_TOKENS:,} by default)")
    temperature: float | None = Field(None, description="0 is greedy; above 1 is more random")
    top_p: float | None = Field(None, description="sample among the likeliest tokens with this total probability")
    top_k: int | None = Field(None, description="sample among this many of the likeliest tokens")
    min_p: float | None = Field(None, description="drop tokens less than this many times as likely as the likeliest")
    seed: int | None = Field(None, description="makes sampling repeatable")
    stop: str | list[str] | None = Field(None, description="stop before this text, or one of these texts")
    repetition_penalty: float | None = Field(None, description="above 1 reduces repetition of prompt and answer")
    frequency_penalty: float | None = Field(None, description="above 0 reduces repetition, by the count of a token")
    presence_penalty: float | None = Field(None, description="above 0 reduces repetition, whatever the count")
    thinking_budget: int | None = Field(None, description="end the model's thoughts after this many tokens")

    def sampling(self, schema: Any) -> dict[str, Any]:
        """Return the parameters for Rekindle, with the JSON schema of the answer, if there is one."""
        options = {"max_tokens": MAX_TOKENS, **self.model_dump(exclude_none=True)}
        return options if schema is None else {**options, "json_schema": schema}
