"""Letters of byte-level BPE."""

from functools import cache


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte of each byte-level BPE character: printable bytes have their own, others U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
