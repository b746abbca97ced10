"""Orders as frames of a link."""

from typing import Any

import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.orders import (
    Adapt,
    Allow,
    Enter,
    Gather,
    GatherState,
    Inspection,
    Order,
    Scatter,
    ScatterState,
    Steer,
    TickOrder,
    Use,
)
from rekindle.hosts.link import Frame


def frame_of(order: Order | Use) -> Frame:
    """Return the frame of an order."""
    match order:
        case TickOrder(bucket, packed):
            return _frame({"say": "step", "bucket": list(bucket)}, packed)
        case Enter(slot, packed):
            return _frame({"say": "enter", "slot": int(slot)}, packed)
        case Allow(slots, bits):
            return _frame({"say": "allow", "slots": [int(slot) for slot in slots]}, bits)
        case Gather(page):
            return Frame({"say": "gather", "page": int(page)}, b"")
        case Scatter(page, content):
            return _frame({"say": "scatter", "page": int(page)}, content)
        case GatherState(slot):
            return Frame({"say": "gather state", "slot": int(slot)}, b"")
        case ScatterState(slot, content):
            return _frame({"say": "scatter state", "slot": int(slot)}, content)
        case Adapt() | Steer() | Inspection():
            raise TypeError("sessions over several hosts have no adapters, steering and inspections")
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
        case "enter":
            return Enter(header["slot"], _array(frame))
        case "allow":
            return Allow(np.array(header["slots"], np.int32), _array(frame))
        case "gather":
            return Gather(header["page"])
        case "scatter":
            return Scatter(header["page"], _array(frame))
        case "gather state":
            return GatherState(header["slot"])
        case "scatter state":
            return ScatterState(header["slot"], _array(frame))
        case "use":
            return Use(header["number"])
    raise ValueError(f"expected an order, got {header['say']!r}")


def _frame(header: dict[str, Any], array: Any) -> Frame:
    values = np.asarray(array)
    return Frame({**header, "dtype": values.dtype.name, "shape": values.shape}, values.tobytes())


def _array(frame: Frame) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(frame.body, np.dtype(frame.header["dtype"])).reshape(frame.header["shape"])
