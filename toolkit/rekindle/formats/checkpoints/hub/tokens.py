"""Tokens for the hub, where notebooks keep them."""

from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from typing import Final

SECRET: Final = "HF_TOKEN"
"""The name of the secret, and of the environment variable."""
_PATIENCE: Final = 60.0
"""Seconds for the user of Colab to allow the secret."""


def has_token() -> bool:
    """Return True if the hub's library finds a token: in the environment, in its file, in Colab's secrets."""
    from huggingface_hub import get_token

    return get_token() is not None


@cache
def notebook_token() -> str | None:
    """Return the token among the secrets of Kaggle or Colab; None without one, or if it is not allowed.

    The hub's library asks Colab itself, in notebooks alone and once, and never Kaggle.
    """
    from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN
    from huggingface_hub.utils import is_google_colab  # type: ignore[attr-defined]  # a public name

    if HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    if _is_importable("kaggle_secrets"):  # its image has the packages of Colab too, where nobody answers
        return _kaggle_token()
    return None if is_google_colab() or not _is_importable("google.colab") else _colab_token()


def _kaggle_token() -> str | None:
    with suppress(Exception):  # of its service, by several classes
        return str(import_module("kaggle_secrets").UserSecretsClient().get_secret(SECRET)).strip() or None
    return None


def _colab_token() -> str | None:
    answer: Future[str] = Future()

    def ask() -> None:
        try:
            answer.set_result(str(import_module("google.colab.userdata").get(SECRET)))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, name="rekindle-secret", daemon=True).start()
    with suppress(Exception):  # there is no such secret, or the user does not allow it, or nobody answers
        return answer.result(_PATIENCE).strip() or None
    return None


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a package above it is missing, or has no spec
        return False
