"""Advice for directories in other formats than a Hugging Face model's."""

from pathlib import Path

from rekindle.formats.checkpoints.huggingface.json_file import read_json
from rekindle.formats.checkpoints.vision.names import is_tower


def advice_for(directory: Path) -> str:
    """Return advice for a directory without config.json, by its other files; empty if they are not known."""
    if (directory / "adapter_config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path") or "another model"
        return (
            f"it is an adapter of {base}: merge the two with PEFT's merge_and_unload(), save the result with "
            "save_pretrained, and open that directory"
        )
    if (directory / "params.json").is_file():
        return (
            "it is in the layout of Mistral's or Meta's own code (params.json): fetch config.json and "
            "model*.safetensors of the same repository, or open a GGUF file of the model"
        )
    if (directory / "model_index.json").is_file():
        return "it is a pipeline of models for images (model_index.json), and only language models are read"
    if gguf_files := sorted(path for path in directory.glob("*.gguf") if not is_tower(path)):
        return f"to open the GGUF file in it, pass its path: {gguf_files[0]}"
    return ""
