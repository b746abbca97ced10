"""The secret by which the processes of one user know each other."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.core.errors import ConfigError, StorageError, UnsafeStorage
from rekindle.core.store.directory import cache_dir, require_private

VARIABLE: Final = "REKINDLE_SECRET"
FILE: Final = "hosts-secret"
SHORTEST: Final = 16
"""The fewest characters of a secret that somebody chose: who hears a greeting can try short ones in peace."""


def shared_secret(given: str | None = None) -> bytes:
    """Return the secret that was given, else that of the environment, else that of the cache directory.

    The last is made where it is missing, readable for this user alone.

    Raises:
        ConfigError: it is too short.
        StorageError: the cache directory cannot be used.
        UnsafeStorage: others can read or write what is in it.
    """
    chosen: object = os.environ.get(VARIABLE) if given is None else given
    if chosen is None:
        return _kept(cache_dir() / FILE)
    if not isinstance(chosen, str) or len(chosen) < SHORTEST:
        where = VARIABLE if given is None else "secret"
        raise ConfigError(
            f'{where} must have at least {SHORTEST} characters, such as those that `python -c "import secrets; '
            'print(secrets.token_hex())"` prints'
        )
    return chosen.encode()


def _kept(path: Path) -> bytes:
    """Return the secret in a file; make it where it is missing."""
    try:
        if not path.exists():
            _make(path)
        require_private(path)
        if hasattr(os, "getuid") and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UnsafeStorage(f"{path} can be read by others: delete it, and start all processes of the group again")
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"the secret {path} cannot be read or made ({error.strerror}); give one instead") from error


def _make(path: Path) -> None:
    """Make a file with a new secret, unless another process is faster; nobody ever sees a part of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
