"""Secret for mutual authentication of a user's processes."""

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
MIN_LENGTH: Final = 16
"""The fewest characters of a user's secret: an eavesdropper on a greeting can guess short ones offline."""


def shared_secret(secret: str | None = None) -> bytes:
    """Return the secret of the argument, of the environment, or of the cache directory, in this order.

    The file in the cache directory is created if missing, readable only for this user.

    Raises:
        ConfigError: the secret is too short.
        StorageError: the cache directory cannot be used.
        UnsafeStorage: other users can read or write the file.
    """
    value: object = os.environ.get(VARIABLE) if secret is None else secret
    if value is None:
        return _read_or_create(cache_dir() / FILE)
    if not isinstance(value, str) or len(value) < MIN_LENGTH:
        name = VARIABLE if secret is None else "secret"
        raise ConfigError(
            f'{name} must have at least {MIN_LENGTH} characters, such as the output of `python -c "import secrets; '
            'print(secrets.token_hex())"`'
        )
    return value.encode()


def _read_or_create(path: Path) -> bytes:
    """Return the secret in a file, created if missing."""
    try:
        if not path.exists():
            _create(path)
        require_private(path)
        if hasattr(os, "getuid") and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UnsafeStorage(f"{path} can be read by others: delete it, and start all processes of the group again")
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"the secret {path} cannot be read or created ({error.strerror}); give one") from error


def _create(path: Path) -> None:
    """Create a file with a new secret atomically, unless another process has created it first."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
