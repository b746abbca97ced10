"""Tokenizer of an LLM, with the common methods of tokenizers of transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.session.session import Session


class LLMTokenizer:
    """Tokenizer of a session.

    Attributes:
        chat_template: the Jinja source of the chat template, or None.
        bos_token, eos_token: the texts of the tokens at the start and at the end, or None.
    """

    def __init__(self, session: Session):
        if session.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer: give token ids as prompts")
        self._session, self._tokenizer = session, session.tokenizer
        self.chat_template = self._tokenizer.chat_template
        self.bos_token, self.eos_token = self._tokenizer.bos_token, self._tokenizer.eos_token

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self._tokenizer.vocab_size

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token at the end."""
        return None if self.eos_token is None else self._tokenizer.backend.token_to_id(self.eos_token)

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token at the start."""
        return None if self.bos_token is None else self._tokenizer.backend.token_to_id(self.bos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens))

    def decode(self, token_ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._tokenizer.decode(ids, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Return a conversation as a text or, with `tokenize`, as tokens; `variables` are those of the template."""
        with_prompt = {**variables, "add_generation_prompt": add_generation_prompt and not continue_final_message}
        text = self._session.render(
            conversation,
            tools=tools,
            chat_template_kwargs=variables if continue_final_message else with_prompt,
            continue_final_message=continue_final_message,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text
