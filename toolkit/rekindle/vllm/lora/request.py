"""Request for an adapter, with the fields of vLLM's."""

from dataclasses import dataclass

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.vllm.sampling_params import changed
from rekindle.vllm.table import check


@hinted
@dataclass(unsafe_hash=True)
class LoRARequest:
    """An adapter: its name, a number from 1, and its directory.

    Attributes:
        load_inplace: whether unchanged files are read again.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        self.check()

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The directory."""
        return self.lora_path

    @property
    def adapter_id(self) -> int:
        """The number."""
        return self.lora_int_id

    def check(self) -> None:
        """Raise InvalidRequest for an invalid field; scripts may assign fields at any time."""
        check("LoRARequest", changed(self))
        if self.lora_int_id < 1 or not self.lora_path:
            raise InvalidRequest(f"lora_int_id must be at least 1, and lora_path the path of a directory, got {self}")
