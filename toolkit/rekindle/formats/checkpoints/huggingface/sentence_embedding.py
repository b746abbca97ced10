"""Embedding settings of a sentence-transformers directory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.request.request import AnyPooling
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors
from rekindle.formats.checkpoints.uses import DENSE_ACTIVATIONS, ConversationForm, Dense, Embedding
from rekindle.formats.model_file import inside, is_present, parse_json, read_json, read_text

_MODULES: Final = "modules.json"
_KINDS: Final = ("Transformer", "Pooling", "Dense", "Normalize")
"""Supported modules, in their order."""
_SCORE: Final = "LogitScore"
"""The module of rankers by an answer."""
_OUTPUT: Final = "sentence_embedding"
_POOLINGS: Final[Mapping[str, AnyPooling]] = {
    "pooling_mode_cls_token": "cls",
    "cls": "cls",
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "mean": "mean",
    "pooling_mode_max_tokens": "max",
    "max": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "weightedmean": "weightedmean",
}
_MODE_PREFIX: Final = "pooling_mode_"


def read_embedding(directory: Path) -> Embedding:
    """Read modules.json, its pooling config, and config_sentence_transformers.json. Missing files are skipped.

    Raises:
        CheckpointError: a file is not valid JSON, or does not have the library's format.
    """
    options = read_json(directory / "config_sentence_transformers.json")
    prompts, default = options.get("prompts") or {}, options.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{directory}/config_sentence_transformers.json: prompts must be texts by name")
    if not is_present(directory / _MODULES):
        settings = read_json(directory / "1_Pooling" / "config.json")
        pooling, reason = _pooling(settings)
        pools_prompt = settings.get("include_prompt") is not False
        return Embedding(pooling, None, prompts, default, pools_prompt=pools_prompt, unsupported_reason=reason)
    modules = list(_modules(directory))
    kinds = [kind for kind, _ in modules]
    messages = _messages(dict(modules).get("Transformer", directory))
    if _SCORE in kinds:
        is_single = bool(_score_settings(directory)) and read_answers(directory) is None
        reason = f"{_MODULES} has scores by one token alone: false_token_id must be a token too" if is_single else ""
        return Embedding(None, None, prompts, default, (), messages, unsupported_reason=reason)
    settings = read_json(dict(modules)["Pooling"] / "config.json") if "Pooling" in kinds else {}
    pooling, unsupported_reason = _pooling(settings)
    unknown = [kind for kind in kinds if kind not in _KINDS]
    dense: list[Dense] = []
    try:
        if unknown:
            raise UnsupportedModel(f"{_MODULES} has further layers after the model: {', '.join(unknown)}")
        if kinds != sorted(kinds, key=_KINDS.index):
            raise UnsupportedModel(f"{_MODULES} has its layers in the order {', '.join(kinds)}")
        dense += [_dense(place) for kind, place in modules if kind == "Dense"]
    except UnsupportedModel as error:
        unsupported_reason = str(error)
    pools_prompt = settings.get("include_prompt") is not False
    return Embedding(
        pooling, "Normalize" in kinds, prompts, default, tuple(dense), messages, pools_prompt, unsupported_reason
    )


def transformer_folder(directory: Path) -> Path:
    """Return the folder of the model in a directory: itself, or 0_Transformer of early sentence-transformers.

    Raises:
        CheckpointError: modules.json has another form.
    """
    if is_present(directory / "config.json") or not is_present(directory / _MODULES):
        return directory
    return next((place for kind, place in _modules(directory) if kind == "Transformer"), directory)


def read_answers(directory: Path) -> tuple[int, int] | None:
    """Read the tokens of yes and no of a ranker by an answer, from modules.json; None without both.

    Raises:
        CheckpointError: a file is not valid JSON, or does not have the library's format.
    """
    settings = _score_settings(directory)
    yes, no = (settings.get(f"{name}_token_id") for name in ("true", "false"))
    return (yes, no) if isinstance(yes, int) and isinstance(no, int) else None


def _score_settings(directory: Path) -> Mapping[str, Any]:
    """Return the settings of a ranker by an answer; empty without a file."""
    places = dict(_modules(directory)) if is_present(directory / _MODULES) else {}
    return read_json(places[_SCORE] / "config.json") if _SCORE in places else {}


def _messages(directory: Path) -> ConversationForm | None:
    """Return the form of texts as conversations; None where a text is as it is."""
    settings = read_json(directory / "sentence_bert_config.json")
    form = (settings.get("modality_config") or {}).get("message")
    if form is None:
        return None
    processing = settings.get("processing_kwargs") or {}
    if unread := ", ".join(name for name, values in processing.items() if values and name != "chat_template"):
        warn(f"{directory}/sentence_bert_config.json: processing_kwargs of {unread} have no effect here")
    variables = processing.get("chat_template") or {}
    own = {name: value for name, value in variables.items() if name != "restore_suffix"}  # an option of the library
    return ConversationForm({"add_generation_prompt": False, **own}, form.get("format") != "flat")


def _dense(directory: Path) -> Dense:
    """Read a dense layer.

    Raises:
        UnsupportedModel: it is of a form that is not supported.
        CheckpointError: a file is damaged.
    """
    settings, place = read_json(directory / "config.json"), f"{_MODULES}: {directory.name}"
    # The default of sentence-transformers, which writes the name of the class.
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    if activation not in DENSE_ACTIVATIONS:
        raise UnsupportedModel(f"{place} has the activation {activation}, not one of {', '.join(DENSE_ACTIVATIONS)}")
    if settings.get("module_input_name", _OUTPUT) != _OUTPUT or settings.get("module_output_name", _OUTPUT) != _OUTPUT:
        raise UnsupportedModel(f"{place} is not a layer from embedding to embedding")
    if not is_present(directory / "model.safetensors"):
        raise UnsupportedModel(f"{place} has no model.safetensors")
    file = open_safetensors(directory / "model.safetensors")
    if "linear.weight" not in file.shapes:
        raise CheckpointError(f"{file.path}: missing linear.weight. Fetch the model again")
    weight, bias = (
        np.asarray(file.loader(name)()).astype(np.float32) if name in file.shapes else None
        for name in ("linear.weight", "linear.bias")
    )
    assert weight is not None
    return Dense(weight, bias, activation)


def _modules(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the type and folder of each module, in order.

    Raises:
        CheckpointError: modules.json has another form, or names a folder outside of the directory.
    """
    path = directory / _MODULES
    modules = parse_json(read_text(path), path)
    try:
        places = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in modules]
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: expected a list of modules, each with a type and a path") from error
    for kind, place in places:
        yield kind, inside(directory, place, _MODULES)


def _pooling(settings: Mapping[str, Any]) -> tuple[AnyPooling | None, str]:
    """Return the pooling of a config, and the reason if it is not supported."""
    mode = settings.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    modes += [key for key, on in settings.items() if key.startswith(_MODE_PREFIX) and on is True]
    if not modes:
        return None, ""
    names = ", ".join(mode.removeprefix(_MODE_PREFIX) for mode in modes)
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        supported = "cls_token, lasttoken, max_tokens, mean_tokens, mean_sqrt_len_tokens or weightedmean_tokens"
        return None, f"its pooling is {names}; supported is one of {supported}"
    return _POOLINGS[modes[0]], ""
