"""`python -m rekindle cache explain`: a model's stored programs and pages, and the reasons for missing ones."""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping

from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.loading.stores import PROGRAMS, SNAPSHOTS
from rekindle.assembly.programs.restore_report import NO_VALUE, part_label
from rekindle.cli.cache import stores
from rekindle.cli.cache.listing import content_of
from rekindle.cli.models.planning import Requirements
from rekindle.cli.units import columns
from rekindle.core.device.programs.functions import program_name
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.core.store.validity import Difference, shorten
from rekindle.core.words import ago, size_text
from rekindle.notebook.progress.bars import ProgressBars


def explain(arguments: Namespace) -> int:
    """Explain every program and the snapshot of a model, without its weights and without a compiler."""
    with ProgressBars(not arguments.quiet) as bars:
        requirements = Requirements.of(arguments, bars.show)
    blueprint = requirements.blueprint
    print(f"{blueprint.checkpoint.source}, {blueprint.dtype.name}, for {requirements.devices[0].device_kind}")
    for line in (*_programs(requirements, bool(arguments.long)), *_snapshot(requirements, bool(arguments.long))):
        print(line)
    return 0


def _programs(requirements: Requirements, long: bool) -> Iterator[str]:
    keys = requirements.blueprint.all_programs()
    missing = requirements.store.missing(keys)
    yield f"\nprograms: {len(keys) - len(missing)} of {len(keys)} are stored in {stores.path_of(PROGRAMS)}"
    names = [program_name(key) for key in keys if key not in missing]
    if names:
        yield f"  stored: {', '.join(names)}"
    reasons: dict[str, list[str]] = {}
    for key in missing:
        reasons.setdefault(_reason(requirements.store.explain(key), long), []).append(program_name(key))
    for reason, names in reasons.items():
        yield f"  not stored: {', '.join(names)}"
        yield reason


def _reason(differences: Mapping[str, Difference] | None, long: bool) -> str:
    if differences is None:
        return "    no program of this name is stored"
    if not differences:
        return "    it was stored a moment ago"
    return "\n".join(("    the most similar stored program differs in", *_parts(differences, long, "      ")))


def _snapshot(requirements: Requirements, long: bool) -> Iterator[str]:
    key, directory = Identity.of(requirements.blueprint).pages_key(), stores.path_of(SNAPSHOTS)
    source = requirements.blueprint.checkpoint.source
    match = next((entry for entry in SnapshotCatalog(directory).entries() if entry.digest == key.digest), None)
    if match is not None:
        content = f"{content_of(match)}, {size_text(match.bytes)}"
        yield f"\nsnapshot: {content}, used {ago(time.time() - match.used)}, in {directory}"
        return
    differences = SnapshotStore(directory, key, source).explain()
    if differences is None:
        yield f"\nsnapshot: none of {source} is stored in {directory}"
        return
    yield f"\nsnapshot: the stored one of {source} is not used; it differs in"
    yield from _parts(differences, long, "  ")


def _parts(differences: Mapping[str, Difference], long: bool, indent: str) -> Iterator[str]:
    for part, pair in differences.items():
        here, stored = pair if long else shorten(pair)
        yield f"{indent}{part_label(part)}"
        yield from columns([("here", here or NO_VALUE), ("stored", stored or NO_VALUE)], f"{indent}  ")
