"""Facts about a model and its files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model and its files, from `session.model`.

    Attributes:
        family: the family's name in the files, such as "llama"; empty if they name none.
        parameters: the number of parameters.
        numbers: the most frequent format of the weights on the devices, such as "bfloat16" or "Q4_K".
        file_format: "safetensors" or "gguf"; empty for a model without files.
        file_bytes: the size of the weight files.
        digest: 64 hexadecimal digits about the content of the weight files, from samples; empty without files.
        modified: the time of the last change of a weight file, in seconds since 1970; 0 without files.
        generates: whether the model generates text; an encoder does not.
    """

    family: str
    parameters: int
    numbers: str
    file_format: str
    file_bytes: int
    digest: str
    modified: float
    generates: bool = True
