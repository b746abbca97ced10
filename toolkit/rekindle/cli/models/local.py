"""The models of Ollama, LM Studio and the hub's cache, with sizes, and with the reason of each refusal."""

import json
import sys

from rekindle.cli.chat.wrapping import wrap_for
from rekindle.cli.units import columns
from rekindle.core.errors import RekindleError
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.local.model import LocalModel
from rekindle.formats.checkpoints.local.sources import local_models
from rekindle.formats.checkpoints.open import open_checkpoint


def print_local(part: str | None, *, as_json: bool) -> int:
    """Print the models with a part in the name, or all models without a part, and return the exit status."""
    models = [model for model in local_models() if part is None or part.casefold() in model.name.casefold()]
    refusals = {model.name: _refusal(model) for model in models}
    if as_json:
        reports = [
            {"model": each.name, "path": str(each.path), "bytes": each.size, "refusal": refusals[each.name]}
            for each in models
        ]
        print(json.dumps({"models": reports}))
    elif models:
        rows = [(each.name, size_text(each.size), refusals[each.name] or "opens") for each in models]
        print("\n".join(columns(rows, indent="")))
    else:
        part_text = "" if part is None else f" with {part!r} in the name"
        print(wrap_for(sys.stdout, f"no models{part_text} of Ollama, LM Studio or the hub's cache on this machine"))
    return 0


def _refusal(model: LocalModel) -> str | None:
    """Return the reason why a model does not open, in one line; None without one. Weights are not read."""
    try:
        open_checkpoint(model.name)
    except RekindleError as error:
        return str(error).partition("\n")[0]
    return None
