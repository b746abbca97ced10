"""The size at which a model sees one image: wishes beside it, by the names of qwen-vl-utils."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview

DETAILS: Final = ("auto", "low", "high")
"""Details of an image: "low" has the fewest tokens, the others all."""
PIXELS: Final = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Keys for bounds of an image's pixels, or for its size, beside it."""
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Sizing:
    """Wishes for the size of one image.

    Attributes:
        detail: one of `DETAILS`.
        min_pixels, max_pixels: bounds of its pixels; None for those of qwen-vl-utils.
        resized_height, resized_width: its size in place of its own; None for its own.
    """

    detail: str = "auto"
    min_pixels: int | None = None
    max_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None

    def __post_init__(self) -> None:
        """Check the wishes."""
        if self.detail not in DETAILS:
            raise InvalidRequest.of(
                "prompt", f"an image's detail must be auto, low or high, got {preview(self.detail)}"
            )
        for name in PIXELS:
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 0 < value < _MOST):
                raise InvalidRequest.of("prompt", f"an image's {name} must be a positive integer, got {preview(value)}")
        if (self.resized_height is None) != (self.resized_width is None):
            raise InvalidRequest.of("prompt", "an image's resized_height needs resized_width, and the other way round")
        if (self.min_pixels or 1) > (self.max_pixels or _MOST):
            raise InvalidRequest.of(
                "prompt",
                f"an image's min_pixels must be at most its max_pixels, got {self.min_pixels} and {self.max_pixels}",
            )

    @classmethod
    def of(cls, part: Mapping[str, Any]) -> "Sizing":
        """Return the wishes beside an image.

        Raises:
            InvalidRequest: one is malformed, or they contradict each other.
        """
        return cls(part.get("detail", "auto"), **wishes_in(part))


def wishes_in(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wishes for pixels among the values of a part."""
    return {name: part[name] for name in PIXELS if part.get(name) is not None}
