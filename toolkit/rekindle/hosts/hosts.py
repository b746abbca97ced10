"""The hosts of a session, as its user holds them."""

import atexit
import threading

from rekindle.core.concurrency.progress import Report
from rekindle.core.config import Settings
from rekindle.core.errors import ConfigError
from rekindle.hosts.address import LISTEN, Address
from rekindle.hosts.follower_group import FollowerGroup
from rekindle.hosts.meeting import meet
from rekindle.hosts.members import Members
from rekindle.hosts.opening import require_shareable
from rekindle.hosts.secret import shared_secret


class Hosts:
    """The processes that serve a session together: this one leads, and others follow.

    `session = await rekindle.open(model, tensor=2, hosts=rekindle.Hosts())` waits until `python -m rekindle follow
    127.0.0.1:7468` runs in another terminal, or on another host with the address of this one. Processes are joined
    once, by `jax.distributed`, before jax first uses a device of theirs. After that, they serve one session after the
    other.

    Who knows the secret can have the followers open models, and see prompts. It is never sent, and what is sent cannot
    be changed on the way. But it can be read there, and jax's own connections between processes ask for no secret: join
    hosts over a network that you trust, and others through a tunnel.

    Args:
        followers: the number of processes that follow.
        listen: where this process waits for them, as "host:port". Unless told otherwise, only processes of this machine
            can reach it.
        secret: what all processes know, of at least 16 characters. None is the environment variable REKINDLE_SECRET,
            else a file in the cache directory, which is made where it is missing: processes that share that directory
            need nothing else.

    Raises:
        ConfigError: an argument is none of the accepted values.
    """

    def __init__(self, followers: int = 1, *, listen: str = LISTEN, secret: str | None = None):
        count: object = followers
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"followers must be an integer of at least 1, got {followers!r}")
        self.followers, self.listen = followers, Address.of(listen)
        self._secret = secret
        self._members: Members | None = None
        self._group: FollowerGroup | None = None
        self._sessions = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        standing = "waited for by open" if self._members is None else "joined"
        if self._members is not None and self._members.lost() is not None:
            standing = "lost"
        return f"<rekindle.Hosts at {self.listen}: {self.followers} to follow, {standing}>"

    def check(self, settings: Settings, family: object) -> None:
        """Check that a session can be opened over these hosts; raises as `require_shareable`."""
        require_shareable(settings, family, self.followers + 1)

    def group(self, report: Report) -> FollowerGroup:
        """Return the followers for a session; the first time, wait until they have come.

        Raises:
            ConfigError: another session has them, or they cannot be joined.
            HostRefused: a process cannot follow.
            HostLost: one of them is gone.
        """
        with self._lock:
            if self._members is None:
                self._members = Members(meet(self.listen, self.followers, shared_secret(self._secret), report))
                atexit.register(self.close)
            if (lost := self._members.lost()) is not None:
                raise lost
            if self._group is not None and not self._group.closed:
                raise ConfigError("these hosts serve another session, and one at a time: close that one first")
            self._sessions += 1
            self._group = FollowerGroup(self._members, self._sessions)
            return self._group

    def close(self) -> None:
        """Let the followers go; their processes end. A session that they serve fails."""
        if self._members is not None:
            atexit.unregister(self.close)
            self._members.end()
