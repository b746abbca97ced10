"""The command `precompile`: compile and store a model's programs, for this machine or another."""

from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from platform import python_version_tuple
from time import monotonic

import jax

from rekindle.assembly.loading.stores import PROGRAMS
from rekindle.cli.models.planning import Requirements
from rekindle.core.buckets import Bucket
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.device.programs.functions import Key, program_name
from rekindle.core.device.programs.key import PACKAGES, Target
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.device.programs.workers import WORKERS
from rekindle.core.errors import ConfigError, StorageError
from rekindle.core.store.directory import cache_dir
from rekindle.core.store.entries import bytes_of
from rekindle.core.words import size_text
from rekindle.notebook.progress.bars import ProgressBars


def precompile(arguments: Namespace) -> int:
    """Compile the programs not stored yet, from the model's config alone, without weights or a device."""
    target: str | None = arguments.target
    with ProgressBars(not arguments.quiet) as bars:
        requirements = Requirements.of(arguments, bars.show, compiles=True)
        blueprint, store = requirements.blueprint, requirements.store
        keys = blueprint.all_programs()
        missing, start = store.missing(keys), monotonic()
        _make(blueprint.programs, store, missing, target or "this machine", bars.show)
    seconds = monotonic() - start
    print(f"{_devices(requirements)}; {blueprint.dtype.name}; {blueprint.programs.shapes.kernels}")
    print(f"programs  {len(keys)}: {len(missing)} compiled in {seconds:.1f} s, {len(keys) - len(missing)} found stored")
    print(f"stored    {size_text(sum(map(bytes_of, map(store.entry, keys))))} in {cache_dir(PROGRAMS)}")
    if target is not None:
        print(f"valid     with {_versions(blueprint.place.devices)}, and the same flags of XLA", flush=True)
    return 0


def _make(programs: Programs, store: ProgramStore, keys: Sequence[Key], target_name: str, report: Report) -> None:
    def make(key: Key) -> None:
        began = monotonic()
        try:
            executable = programs.compile(key)
        except jax.errors.JaxRuntimeError as error:
            raise ConfigError(
                f"the program {program_name(key)!r} does not compile for {target_name}: {error}"
            ) from error
        data = store.serialize(executable, monotonic() - began)
        if data is None or not store.save(key, data):
            raise StorageError(f"the program {program_name(key)!r} cannot be stored in {cache_dir(PROGRAMS)}")

    # Largest first: they take longest, and a program too large for memory fails early.
    keys = sorted(keys, key=lambda key: -key.size if isinstance(key, Bucket) else 0)
    with ThreadPoolExecutor(WORKERS, "rekindle-programs") as pool:
        futures = [pool.submit(make, key) for key in keys]
        try:
            report(Progress(f"compiling for {target_name}", 0, len(keys), "programs"))
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                report(Progress(f"compiling for {target_name}", done, len(keys), "programs"))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _devices(requirements: Requirements) -> str:
    """Return a line about the devices of the programs, and the number of available devices if there are more."""
    place, available = requirements.blueprint.place, len(requirements.devices)
    kind, used = place.first.device_kind, len(place.devices)
    if used > 1:
        mesh = f"tensor={place.tensor}" if place.data == 1 else f"data={place.data},tensor={place.tensor}"
        return f"devices   {used}{f' of {available}' if used < available else ''} {kind}, {mesh}"
    others = f", the first of {available}, as --mesh tensor={available} is not given" if available > 1 else ""
    return f"device    {kind}{others}"


def _versions(devices: Sequence[jax.Device]) -> str:
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"python {'.'.join(python_version_tuple()[:2])}, {packages}, {Target.of(devices).plugins}"
