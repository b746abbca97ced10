"""Settings of `open` without an effect, because another setting or the model leaves nothing for them to do."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Final

from rekindle.settings.engine import Settings

_DEFAULTS: Final = {each.name: each.default for each in fields(Settings)}


def idle_settings(settings: Settings) -> Iterator[str]:
    """Yield a sentence about each setting with another value than its default, and without an effect."""
    for name, reason_of in _RULES.items():
        value = getattr(settings, name)
        if value != _DEFAULTS[name] and (reason := reason_of(settings)) is not None:
            yield f"{name}={value!r:.80} has no effect: {reason}"


def _route(settings: Settings) -> str | None:
    if settings.prefill is not None:
        return "prefill= and decode= decide the lanes of a request"
    return "there is one lane; replicas= makes several" if settings.lane_count == 1 else None


def _prefill_from(settings: Settings) -> str | None:
    return "no devices are for prompts alone; prefill= and decode= name some" if settings.prefill is None else None


def _policy(settings: Settings) -> str | None:
    if settings.policy in ("longest-prefix", "dfs-weight") and not settings.prefix_cache:
        return "it orders requests by their cached prefixes, and prefix_cache=False keeps none"
    return None


def _host_cache(settings: Settings) -> str | None:
    return "prefix_cache=False keeps no pages" if settings.host_cache_bytes and not settings.prefix_cache else None


def _disk_cache(settings: Settings) -> str | None:
    if not settings.disk_cache_bytes:
        return None
    if not settings.prefix_cache:
        return "prefix_cache=False keeps no pages"
    if settings.restore == "off":
        return 'restore="off" keeps nothing on disk'
    return (
        None if settings.host_cache_bytes else "pages reach the disk by way of host memory, and host_cache_bytes is 0"
    )


def _weight_cache(settings: Settings) -> str | None:
    if not settings.weight_cache_bytes:
        return None
    return 'restore="off" keeps nothing on disk' if settings.restore == "off" else None


_RULES: Final[Mapping[str, Callable[[Settings], str | None]]] = {
    "route": _route,
    "prefill_from": _prefill_from,
    "policy": _policy,
    "host_cache_bytes": _host_cache,
    "disk_cache_bytes": _disk_cache,
    "weight_cache_bytes": _weight_cache,
}
