"""The form of typed questions of a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.uses import DecisionForm
from rekindle.formats.model_file import is_present, read_json, read_text

SETTINGS: Final = "decision.json"
TEMPLATE: Final = "decision_template.jinja"
KINDS: Final = ("choice", "noul", "score")


def read_decision_form(directory: Path) -> DecisionForm:
    """Read decision.json and decision_template.jinja; a missing file leaves the common form.

    Raises:
        CheckpointError: a file is not valid, or has labels, temperatures or options of another form.
    """
    settings, template = read_json(directory / SETTINGS), directory / TEMPLATE
    try:
        source = read_text(template) if is_present(template) else None
        labels = {kind: tuple(_texts(each)) for kind, each in _by_kind(settings, "labels").items() if each}
        temperature = {kind: float(each) for kind, each in _by_kind(settings, "temperature").items()}
        order = _texts(settings.get("noul_options") or ["true", "false"])
        if sorted(order) != ["false", "true"] or any(each <= 0 for each in temperature.values()):
            raise ValueError("noul_options must order true and false, and temperatures must be above 0")
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / SETTINGS}: expected labels (lists of texts) and temperature (numbers) by the kinds "
            f"{', '.join(KINDS)}, and a template in UTF-8: {error}"
        ) from error
    return DecisionForm(labels, temperature, (order[0], order[1]), source)


def _by_kind(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = settings.get(name) or {}
    return {kind: values[kind] for kind in KINDS if values.get(kind) is not None}


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise ValueError(f"{values!r:.80} is not a list of texts")
    return values
