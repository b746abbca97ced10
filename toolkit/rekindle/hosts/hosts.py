"""Public description of a session's hosts."""

import atexit
import threading

from rekindle.core.concurrency.progress import Report
from rekindle.core.errors import ConfigError
from rekindle.core.keywords import hinted
from rekindle.core.words import quantity
from rekindle.hosts.address import LISTEN, Address
from rekindle.hosts.follower_group import FollowerGroup
from rekindle.hosts.meeting import meet
from rekindle.hosts.members import Members
from rekindle.hosts.opening import require_shareable
from rekindle.hosts.secret import shared_secret
from rekindle.settings.engine import Settings


@hinted
class Hosts:
    """The processes of a session over several hosts: this process leads, and the others follow.

    `session = await rekindle.open(model, tensor=2, hosts=rekindle.Hosts())` waits until `python -m rekindle follow
    127.0.0.1:7468` runs in another terminal, or on another host with the address of this one. `jax.distributed` joins
    the processes once, before jax first uses their devices. They then serve one session after another.

    Anyone with the secret can make the followers open models, and see prompts. The secret itself is never sent, and
    messages cannot be changed on the way. They are not encrypted, though, and jax's connections between processes need
    no secret. Join hosts over a trusted network, or through a tunnel.

    Args:
        followers: the number of followers.
        listen: the address for followers, as "host:port"; by default reachable from this machine only.
        secret: the shared secret of all processes, at least 16 characters. None takes the environment variable
            REKINDLE_SECRET, or else a file in the cache directory, created if missing; processes with a common cache
            directory need nothing else.

    Raises:
        ConfigError: an argument has an invalid value.
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
        state = "not joined yet" if self._members is None else "joined"
        if self._members is not None and self._members.loss() is not None:
            state = "lost"
        return f"<rekindle.Hosts at {self.listen}: {quantity(self.followers, 'follower')}, {state}>"

    def check(self, settings: Settings, family: object) -> None:
        """Check the settings for a session over these hosts; raises as `require_shareable`."""
        require_shareable(settings, family, self.followers + 1)

    def group(self, report: Report) -> FollowerGroup:
        """Return the followers for a session; the first call waits until all have connected.

        Raises:
            ConfigError: another session uses the followers, or they cannot be joined.
            HostRefused: a process cannot follow.
            HostLost: a follower is gone.
        """
        with self._lock:
            if self._members is None:
                self._members = Members(meet(self.listen, self.followers, shared_secret(self._secret), report))
                atexit.register(self.close)
            if (loss := self._members.loss()) is not None:
                raise loss
            if self._group is not None and not self._group.closed:
                raise ConfigError("these hosts serve one session at a time: close the other session first")
            self._sessions += 1
            self._group = FollowerGroup(self._members, self._sessions)
            return self._group

    def close(self) -> None:
        """End the follower processes. A session still open over them fails."""
        if self._members is not None:
            atexit.unregister(self.close)
            self._members.end()
