"""Texts of image tokens in the words of users: there, they are plain text."""

import json
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from rekindle.core.text.tokenizer import Tokenizer


class Disguise:
    """Stand-ins for texts of image tokens in the values of a chat template. All others are the template's own.

    Args:
        texts: the texts of the tokens; none begins with another one.
    """

    def __init__(self, texts: Sequence[str]):
        mark = token_hex(8)  # nobody can write it in advance
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        self._stand_ins = {text: f"IMG{mark}x{index}x" for index, text in enumerate(texts)}
        self._texts = {stand_in: text for text, stand_in in self._stand_ins.items()}
        self._back = re.compile(f"IMG{mark}x\\d+x")

    def put_on(self, value: Any) -> Any:
        """Return a value with stand-ins in all its texts; a value without such texts is returned itself."""
        match value:
            case str():
                return self._pattern.sub(lambda match: self._stand_ins[match[0]], value)
            case Mapping():
                return {self.put_on(key): self.put_on(each) for key, each in value.items()}
            case list() | tuple():
                return [self.put_on(each) for each in value]
        return value

    def take_off(self, text: str) -> str:
        """Return a text with the texts of the tokens instead of their stand-ins."""
        return self._back.sub(lambda match: self._texts[match[0]], text)

    def is_needed(self, value: Any) -> bool:
        """Return True if a text of a value has a text of a token."""
        match value:
            case str():
                return self._pattern.search(value) is not None
            case Mapping():
                return any(self.is_needed(each) for pair in value.items() for each in pair)
            case list() | tuple():
                return any(map(self.is_needed, value))
        return False


class PrivateTokens:
    """A tokenizer in which some special tokens have other, secret texts: their known texts are plain text.

    Args:
        tokenizer: the tokenizer.
        texts: the known texts of the tokens; none begins with another one.

    Attributes:
        tokenizer: the tokenizer with the secret texts.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]):
        from tokenizers import Tokenizer as Backend

        mark = token_hex(8)
        state = json.loads(tokenizer.to_json())
        self._secrets = {text: f"<{mark}-{index}>" for index, text in enumerate(texts)}
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        for entry in state["added_tokens"]:
            entry["content"] = self._secrets.get(entry["content"], entry["content"])
        vocabulary = state["model"].get("vocab")
        if isinstance(vocabulary, dict):
            state["model"]["vocab"] = {self._secrets.get(text, text): token for text, token in vocabulary.items()}
        elif isinstance(vocabulary, list):  # of Unigram
            state["model"]["vocab"] = [[self._secrets.get(text, text), score] for text, score in vocabulary]
        self.tokenizer = Tokenizer(Backend.from_str(json.dumps(state)))
        for text, secret in self._secrets.items():
            if self.tokenizer.backend.token_to_id(secret) != tokenizer.backend.token_to_id(text):
                raise AssertionError(f"the token {text!r} has another id under another name")

    def secret(self, text: str) -> str:
        """Return a text with the secret texts of the tokens in it."""
        return self._pattern.sub(lambda match: self._secrets[match[0]], text)
