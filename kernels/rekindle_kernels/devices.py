"""The device of kernels that are chosen and traced."""

import jax


def default_device() -> jax.Device:
    """Return JAX's default device for this thread: the one in `jax.default_device`, or the first."""
    device = getattr(jax.config, "jax_default_device", None)
    if isinstance(device, jax.Device):
        return device
    first: jax.Device = jax.local_devices(backend=device)[0]
    return first


def capability_of(device: jax.Device) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU, attached or not, like (7, 5) for a T4; None for others."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
