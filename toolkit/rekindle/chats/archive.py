"""Conversations of earlier starts: files of the cache directory, readable by their user alone."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from rekindle.chats.card import content
from rekindle.chats.turn_tokens import NO_TOKENS, TurnTokens
from rekindle.client.requests import Requests
from rekindle.core.errors import ConfigError, InvalidRequest, StorageError
from rekindle.core.store.directory import atomic_write, cache_dir
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.words import size_text
from rekindle.formats.images.writing import as_json
from rekindle.formats.rendering.chat import check_messages

Messages = Sequence[Mapping[str, Any]]
HISTORY: Final = "history"
"""The folder of the cache directory for conversations, and for the lines typed in a terminal."""
MOST: Final = 20
"""Most conversations with a model."""
DAYS: Final = 90
"""Most days since the last turn of a conversation."""
MOST_BYTES: Final = 32 << 20
"""Most bytes of a conversation; images take four bytes for each three of their files."""
_UNFINISHED_SECONDS: Final = 3600
"""The age of a file of a killed process."""


@dataclass(frozen=True, slots=True)
class ArchivedChat:
    """A conversation of an earlier start.

    Attributes:
        path: its file.
        model: the model's name.
        title: the first message of the user, on one line; "" without one.
        messages: its messages.
        tokens: the tokens of its turns as JSON, and the digest of their tokenizer; None without them.
        time: the time of its last turn, in seconds since 1970.
        stamp: the content of the file, by time and size.
    """

    path: Path
    model: str
    title: str
    messages: Messages
    tokens: Any
    time: float
    stamp: tuple[int, int]


class TalkArchive:
    """The conversations with a model, the same for notebooks and terminals.

    Each is a file of its own, so several processes never write the same one. The names of files tell neither the model
    nor a word: they are a digest and random digits.

    Args:
        model: the name or the path of the model.
    """

    def __init__(self, model: str):
        self.model = os.path.realpath(model) if os.path.exists(model) else model

    @property
    def prefix(self) -> str:
        """Beginning of the names of its files."""
        return f"chat-{sha256(self.model.encode(errors='surrogatepass')).hexdigest()[:16]}"

    def new_path(self) -> Path:
        """Return the path of a new file.

        Raises:
            StorageError: the cache directory cannot be used.
        """
        return cache_dir(HISTORY) / f"{self.prefix}-{token_hex(8)}.json"

    def latest(self, count: int) -> tuple[list[ArchivedChat], list[str]]:
        """Return the latest conversations, latest first, and a line about each damaged file before these.

        Args:
            count: the most conversations.
        """
        chats: list[ArchivedChat] = []
        lines: list[str] = []
        with suppress(StorageError):  # a disk that cannot be written only loses the offer
            for path in files(cache_dir(HISTORY), self.prefix):
                if len(chats) == count or _age(path, time.time()) > DAYS * 86400:
                    break
                try:
                    chats.append(read(path))
                except FileNotFoundError:  # another process has continued it
                    continue
                except (OSError, InvalidRequest, ConfigError) as error:
                    lines.append(f"{path.name} was skipped: {getattr(error, 'strerror', None) or error}")
        return chats, lines


class Recording:
    """The file of a running conversation, written after its turns.

    Args:
        archive: the conversations with its model.
        tokenizer: the tokenizer of the model; None for a file without tokens.

    Attributes:
        archive: as above.
    """

    def __init__(self, archive: TalkArchive, tokenizer: Tokenizer | None = None):
        self.archive, self._tokenizer = archive, tokenizer
        self._paths: dict[str, Path] = {}
        self._source: ArchivedChat | None = None

    def resume(self, source: ArchivedChat) -> None:
        """Continue an earlier conversation; its file stays until the first turn is written."""
        self._source = source
        self._paths.pop(_beginning(source.messages), None)

    def tokens_of(self, source: ArchivedChat) -> TurnTokens:
        """Return the tokens of a conversation, so that its next turn finds their pages; none of another tokenizer."""
        if self._tokenizer is None or not isinstance(source.tokens, Mapping):
            return NO_TOKENS
        if source.tokens.get("tokenizer") != self._digest:
            return NO_TOKENS
        return TurnTokens.of_json(source.tokens, self._tokenizer.backend.get_vocab_size())

    @cached_property
    def _digest(self) -> str:
        """Digest of the tokenizer; "" for one with parts that cannot be written."""
        with suppress(Exception):  # such as a pre-tokenizer in Python
            assert self._tokenizer is not None, "it is asked for tokens"
            return sha256(self._tokenizer.to_json().encode()).hexdigest()
        return ""

    def write(self, messages: Messages, turn_tokens: TurnTokens = NO_TOKENS) -> str:
        """Write the conversation, if it has an answer; return the reason if that fails, else "".

        A conversation with another first message gets a file of its own, as after `undo` of all turns.

        Args:
            messages: its messages.
            turn_tokens: their tokens.
        """
        if not any(message.get("role") == "assistant" for message in messages):
            return ""
        try:
            plain = as_json(messages)
            whole = {"model": self.archive.model, "messages": plain, "tokens": self._tokens(turn_tokens)}
            text = json.dumps(whole).encode()
            if len(text) > MOST_BYTES:
                return f"not kept for later: it takes {size_text(len(text))}, more than {size_text(MOST_BYTES)}"
            path = self._paths.setdefault(_beginning(plain), self.archive.new_path())
            with atomic_write(path) as file:
                file.write(text)
        except (OSError, StorageError, InvalidRequest, ConfigError, TypeError, ValueError) as error:
            return f"not kept for later: {error}"
        self._drop_source(text)
        with suppress(OSError, StorageError):
            prune()
        return ""

    def _tokens(self, turn_tokens: TurnTokens) -> Mapping[str, Any] | None:
        tokens = None if self._tokenizer is None else turn_tokens.as_json()
        return None if tokens is None or not self._digest else {"tokenizer": self._digest, **tokens}

    def _drop_source(self, text: bytes) -> None:
        """Remove the file of the earlier conversation if this one has all of it, and no other process wrote there."""
        source, self._source = self._source, None
        if source is None or json.loads(text)["messages"][: len(source.messages)] != source.messages:
            return
        with suppress(OSError):
            if _stamp(source.path) == source.stamp:
                source.path.unlink()


def archive_of(requests: Requests, options: Mapping[str, Any]) -> TalkArchive | None:
    """Return the archive for the conversations of a session; None if they are not kept.

    They are not with `restore="off"` or `disk_cache_bytes=0`, and with a `cache_salt`, which separates users.

    Args:
        options: the options of the conversation.
    """
    settings = requests.engine.facts.settings
    is_private = settings.restore == "off" or not settings.disk_cache_bytes or bool(requests.salt(options))
    return None if is_private or not requests.name else TalkArchive(requests.name)


def files(directory: Path, prefix: str = "chat-") -> list[Path]:
    """Return the files of conversations, latest first."""
    times: dict[Path, float] = {}
    for path in directory.glob(f"{prefix}*.json"):
        with suppress(OSError):
            times[path] = path.stat().st_mtime
    return sorted(times, key=lambda path: (-times[path], path.name))


def read(path: Path) -> ArchivedChat:
    """Return the conversation of a file.

    Raises:
        OSError: the file cannot be read.
        InvalidRequest: it has no conversation, or a damaged image.
        ConfigError: it has images, and Pillow is not installed.
    """
    stamp = _stamp(path)
    if stamp[1] > MOST_BYTES:
        raise InvalidRequest(f"it has {size_text(stamp[1])}, more than any conversation")
    try:
        whole = json.loads(path.read_bytes())
        model, messages = whole["model"], whole["messages"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"it has no conversation ({type(error).__name__})") from error
    check_messages(messages)
    return ArchivedChat(path, str(model), user_line(messages), messages, whole.get("tokens"), stamp[0] / 1e9, stamp)


def prune() -> None:
    """Remove conversations beyond the bounds in number and age, and files of killed processes.

    Raises:
        StorageError: the cache directory cannot be used.
    """
    directory, now = cache_dir(HISTORY), time.time()
    counts: dict[str, int] = {}
    for path in files(directory):
        model = path.name[: len("chat-") + 16]
        counts[model] = counts.get(model, 0) + 1
        if counts[model] > MOST or _age(path, now) > DAYS * 86400:
            path.unlink(missing_ok=True)
    for path in directory.glob(".chat-*"):
        if _age(path, now) > _UNFINISHED_SECONDS:
            path.unlink(missing_ok=True)


def user_line(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the first message of the user in one line; "" if there is none."""
    texts = (content(message) for message in messages if message.get("role") == "user")
    return " ".join(next(texts, "").split())


def _beginning(messages: Messages) -> str:
    """Return the digest of the first message after the system's."""
    first = next((message for message in messages if message.get("role") != "system"), None)
    return sha256(json.dumps(first).encode()).hexdigest()


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:  # another process has removed it
        return 0.0


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
