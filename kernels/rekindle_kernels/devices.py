"""The device that kernels are chosen and traced for."""

import jax


def default_device() -> jax.Device:
    """Return JAX's default device for this thread: that of `jax.default_device`, or the first one."""
    device = jax.config.jax_default_device
    if isinstance(device, jax.Device):
        return device
    first: jax.Device = jax.local_devices(backend=device)[0]
    return first


def capability_of(device: jax.Device) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU, attached or not, such as (7, 5) for a T4; None for others."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
