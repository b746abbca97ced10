"""The models of Ollama, LM Studio, the hub's cache and the current folder, as `rekindle.models` lists them."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from rekindle.cli.chat.wrapping import wrap_for
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
