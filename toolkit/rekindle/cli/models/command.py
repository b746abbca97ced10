"""The command `models`: the supported families, and the largest published sizes for this machine."""

import json
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from rekindle.assembly import fitting as machines
from rekindle.assembly.fitting import Machine
from rekindle.assembly.loading.choosing import AUTO
from rekindle.cli.chat.wrapping import wrap_for
from rekindle.cli.models.table import FamilyRow, PublishedSize, count_text, rows
from rekindle.cli.units import columns
from rekindle.core.errors import ConfigError
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.session.models import list_models


def print_local(arguments: Namespace) -> int:
    """Print the models with a part in the name, or all models without a part, and return the exit status."""
    models = list_models([Path()], part=arguments.name or "", tokens=arguments.context, dtype=arguments.dtype)
    if arguments.json:
        reports = [
            {
                "model": each.name,
                "path": str(each.path),
                "place": each.place,
                "bytes": each.size,
                "format": each.format,
                "architecture": each.architecture,
                "memory_bytes": each.needs,
                "fits": each.fits,
                "refusal": each.refusal or None,
            }
            for each in models
        ]
        print(json.dumps({"models": reports, "skipped": models.skipped}))
    elif models:
        print(wrap_for(sys.stdout, "\n".join(models.lines(names=True))))
    else:
        part = "" if arguments.name is None else f" with {arguments.name!r} in the name"
        places = f"Ollama, LM Studio, the hub's cache or {Path.cwd()}"
        print(wrap_for(sys.stdout, "\n".join([f"no models{part} of {places} on this machine", *models.skipped])))
    return 0


_WIDEST: Final = 100
"""Most characters in a line of text."""


def models(arguments: Namespace) -> int:
    """Print one line for each family; with a name, one line for each size of the families with this name.

    With `--local`, print the models in files of this machine instead.
    """
    tokens = arguments.context
    if tokens < 0:
        raise ConfigError(f"--context must be at least 0, got {tokens}")
    if arguments.local:
        return print_local(arguments)
    families = _matching(arguments.name)
    if arguments.machine is None:
        machine = machines.this_machine(arguments.dtype)
    else:
        machine = machines.other_machine(arguments.machine, arguments.dtype)
    if arguments.json:
        print(json.dumps(_report(families, machine, tokens)))
        return 0
    lines = _summary if arguments.name is None else _details
    print("\n".join(lines(families, machine, tokens)))
    return 0


def _matching(name: str | None) -> tuple[FamilyRow, ...]:
    """Return the families with this part in a name: of the family, its files or its sizes.

    Raises:
        ConfigError: there is none.
    """
    if name is None:
        return rows()
    matches = tuple(row for row in rows() if any(_plain(name) in _plain(each) for each in _names(row)))
    if not matches:
        words = {_plain(word): word for row in rows() for word in (row.family, *row.name.replace(",", "").split())}
        close = [words[each] for each in get_close_matches(_plain(name), words)]
        hint = f"; close names: {', '.join(close)}" if close else ""
        if name == AUTO:
            hint = f"; `rekindle info {AUTO}` names the model that {AUTO} chooses for this machine"
        raise ConfigError(
            f"no family and no size has {name!r} in its name{hint}.\n- `rekindle models` without a name lists all\n"
            "- `rekindle info MODEL` reads the config of any model"
        )
    return matches


def _names(row: FamilyRow) -> tuple[str, ...]:
    return row.family, row.name, row.architecture, *row.gguf, *(size.name for size in row.sizes)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _summary(families: Sequence[FamilyRow], machine: Machine, tokens: int) -> Iterator[str]:
    """Yield the families, with the largest fitting size of each in brackets."""
    yield from _text(
        f"{_memory(machine)} In brackets: the largest size that fits, and its memory, for weights in {machine.dtype} "
        f"and {tokens:,} tokens of context. `rekindle models NAME` prints each size of a family."
    )
    yield ""
    yield from columns([_line(row, machine, tokens) for row in families], indent="")
    yield ""
    yield from _text(
        f"`rekindle chat` opens {NAME}, from PyPI, `rekindle chat owner/name` a model of the hub, and `rekindle chat "
        "auto` one for this machine."
    )
    yield from _note(machine)


def _line(row: FamilyRow, machine: Machine, tokens: int) -> tuple[str, str, str]:
    largest = machine.largest(row.sizes, tokens)
    labels = " ".join(f"[{size.label}]" if size is largest else size.label for size in row.sizes)
    if largest is not None:
        return row.name, labels, size_text(machine.bytes_of(largest, tokens))
    smallest = min((machine.bytes_of(size, tokens) for size in row.sizes), default=None)
    return row.name, labels, "" if smallest is None else f"from {size_text(smallest)}"


def _details(families: Sequence[FamilyRow], machine: Machine, tokens: int) -> Iterator[str]:
    """Yield each family, with a line for each size."""
    yield from _text(
        f"{_memory(machine)} Memory is for weights in {machine.dtype}, without and with {tokens:,} tokens of context: "
        "+ fits, * is the largest that fits, - does not fit."
    )
    for row in families:
        yield ""
        yield from _text(f"{row.name} ({row.family})")
        yield from _text(f"tested: {row.tested}", indent="  ")
        gguf = f", GGUF ({', '.join(row.gguf)})" if row.gguf else ""
        yield from _text(f"files: safetensors ({row.architecture}){gguf}", indent="  ")
        if row.sizes:
            yield from columns(_cells(row, machine, tokens))
    yield from _note(machine)


def _cells(row: FamilyRow, machine: Machine, tokens: int) -> list[tuple[str, ...]]:
    """Return a table of a family's sizes. Active parameters are only there for experts."""
    largest, has_experts = machine.largest(row.sizes, tokens), any(size.active < size.parameters for size in row.sizes)
    table: list[tuple[str, ...]] = [("  size", "params", "active", "weights", f"+{tokens:,}")]
    for size in row.sizes:
        mark = "*" if size is largest else {True: "+", False: "-", None: ""}[machine.fits(size, tokens)]
        counts = count_text(size.parameters), count_text(size.active)
        table.append(
            (
                f"{mark:1} {size.name}",
                *counts,
                size_text(size.weight_bytes(machine.dtype)),
                size_text(machine.bytes_of(size, tokens)),
            )
        )
    return table if has_experts else [(*cells[:2], *cells[3:]) for cells in table]


def _memory(machine: Machine) -> str:
    if machine.memory is None:
        return f"The memory of {machine.text} is not known, so no size is marked as fitting."
    return f"{machine.text[0].upper()}{machine.text[1:]}: {size_text(machine.memory)} of memory."


def _note(machine: Machine) -> Iterator[str]:
    if machine.dtype == "float32":
        yield ""
        yield from _text(
            "float32 is the default on CPUs; bfloat16 needs half of the memory: `rekindle models --dtype bfloat16`, "
            'and dtype="bfloat16" in `open`. A quantized GGUF file needs less still.'
        )


def _text(text: str, indent: str = "") -> list[str]:
    """Return a text in lines for the terminal, without breaks in names such as "Qwen3-8B"."""
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False, break_long_words=False
    )


def _report(families: Sequence[FamilyRow], machine: Machine, tokens: int) -> dict[str, Any]:
    reports = [
        {
            "family": row.family,
            "name": row.name,
            "architecture": row.architecture,
            "gguf": row.gguf,
            "tested": row.tested,
            "images": row.reads_images,
            "sizes": [_size_report(size, machine, tokens) for size in row.sizes],
        }
        for row in families
    ]
    return {
        "devices": machine.text,
        "memory_bytes": machine.memory,
        "dtype": machine.dtype,
        "context_tokens": tokens,
        "families": reports,
    }


def _size_report(size: PublishedSize, machine: Machine, tokens: int) -> dict[str, Any]:
    return {
        "model": size.name,
        "parameters": size.parameters,
        "active_parameters": size.active,
        "weight_bytes": size.weight_bytes(machine.dtype),
        "bytes_with_context": machine.bytes_of(size, tokens),
        "fits": machine.fits(size, tokens),
    }
