"""Errors of devices without room."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error of XLA about memory of a device."""
    return "RESOURCE_EXHAUSTED" in str(error)
