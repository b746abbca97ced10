"""Orders as frames of a link."""

from typing import Any, Final

import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.orders import EmbedOrder, Inspection, Order, StateOrder, TickOrder, Use
from rekindle.core.device.programs.functions import ALLOW, ENTER, GATHER, GATHER_STATE, SCATTER, SCATTER_STATE
from rekindle.hosts.link import Frame

SHARED: Final = {each.name: each for each in (ALLOW, ENTER, GATHER, GATHER_STATE, SCATTER, SCATTER_STATE)}
"""Programs for sessions over several hosts, beside the steps."""


def frame_of(order: Order | Use) -> Frame:
    """Return the frame of an order."""
    match order:
        case TickOrder(bucket, packed):
            return _frame({"say": "step", "bucket": list(bucket)}, packed)
        case StateOrder(program, index, content) if program.name in SHARED:
            header = {"say": program.name, "index": np.asarray(index).tolist()}
            return Frame(header, b"") if content is None else _frame(header, content)
        case StateOrder() | EmbedOrder() | Inspection():
            raise TypeError("sessions over several hosts have no adapters, steering, images and inspections")
        case Use(number):
            return Frame({"say": "use", "number": number}, b"")


def order_of(frame: Frame) -> Order | Use:
    """Return the order in a frame.

    Raises:
        ValueError: the frame is not an order.
    """
    header = frame.header
    match header["say"]:
        case "step":
            return TickOrder(Bucket(*header["bucket"]), _array(frame))
        case "use":
            return Use(header["number"])
        case str(name) if name in SHARED:
            index = np.array(header["index"], np.int32) if isinstance(header["index"], list) else header["index"]
            return StateOrder(SHARED[name], index, _array(frame) if frame.body else None)
    raise ValueError(f"expected an order, got {header['say']!r}")


def _frame(header: dict[str, Any], array: Any) -> Frame:
    values = np.asarray(array)
    return Frame({**header, "dtype": values.dtype.name, "shape": values.shape}, values.tobytes())


def _array(frame: Frame) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(frame.body, np.dtype(frame.header["dtype"])).reshape(frame.header["shape"])
