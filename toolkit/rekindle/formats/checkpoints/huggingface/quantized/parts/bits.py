"""Small codes in a dense stream of bits, low bits first: code i of a row is at bit i * bits."""

import numpy as np

from rekindle_kernels.blocks import Array, Bytes


def unpacked(rows: Array, bits: int, count: int) -> Bytes:
    """Return the first codes of each row, one a byte.

    Args:
        rows: (rows, any) integers of any size, each row a stream of bits.
        bits: the bits of a code, at most 8.
        count: the number of codes of a row.

    Returns:
        (rows, count) uint8.
    """
    data = np.ascontiguousarray(rows).view(np.uint8)
    if bits == 8:
        return data[:, :count]
    lanes = 8 // bits if 8 % bits == 0 else 8
    whole = lanes * bits // 8  # bytes that `lanes` codes fill together
    padded = np.pad(data, ((0, 0), (0, -data.shape[1] % whole))) if data.shape[1] % whole else data
    parts = padded.reshape(len(data), -1, whole)
    codes = np.empty((*parts.shape[:2], lanes), np.uint8)
    for lane in range(lanes):
        byte, shift = divmod(lane * bits, 8)
        value = parts[..., byte] >> np.uint8(shift)
        if shift + bits > 8:
            value |= parts[..., byte + 1] << np.uint8(8 - shift)
        np.bitwise_and(value, np.uint8((1 << bits) - 1), out=codes[..., lane])
    return codes.reshape(len(data), -1)[:, :count]


def in_half_bytes(codes: Bytes) -> Bytes:
    """Return codes of at most 4 bits, one a byte, as two a byte with the first in the low half."""
    data = np.pad(codes, ((0, 0), (0, 1))) if codes.shape[1] % 2 else codes
    return data[:, 0::2] | data[:, 1::2] << np.uint8(4)


def stored_codes(rows: Array, bits: int, count: int) -> Bytes:
    """Return the first codes of each row in the least bytes of `Codes`: two a byte for at most 4 bits, else one."""
    if bits == 4:
        return np.ascontiguousarray(rows).view(np.uint8)
    codes = unpacked(rows, bits, count)
    return in_half_bytes(codes) if bits < 4 else codes


def words(count: int, bits: int) -> int:
    """Return the number of 32-bit words of a stream of codes."""
    return -(-count * bits // 32)
