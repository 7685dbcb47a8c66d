"""CRC-32C, the checksum of TensorBoard's records, by table look-ups over whole blocks.

A checksum is linear: what one byte adds to it depends on the byte and its place alone. So a block's checksum is the
exclusive or of one table entry for each byte, which NumPy gathers at once. (Byte by byte in Python, the checksum would
take most of the time of writing an event.)
"""

from __future__ import annotations

import functools

import numpy as np

_BLOCK = 256
_POLYNOMIAL = 0x82F63B78  # reflected


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as records hold it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    table, places, (first, second, third, fourth, *_, last) = _tables()
    crc = 0xFFFFFFFF
    if len(data) < 32:
        for byte in data:
            crc = last[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    padding = -len(data) % _BLOCK  # zeros in front add nothing
    padded = np.zeros(padding + len(data), np.uint8)
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 0xFF  # the checksum begins with all ones
    crc = 0
    for block in np.bitwise_xor.reduce(table[padded.reshape(-1, _BLOCK) + places], axis=1).tolist():
        crc = block ^ first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """What each byte adds at each place of a block: flat, where each place begins in it, and the places as lists."""
    byte_alone = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte_alone = np.where(byte_alone & 1, byte_alone >> 1 ^ np.uint32(_POLYNOMIAL), byte_alone >> 1)
    table = np.empty((_BLOCK, 256), np.uint32)
    table[-1] = byte_alone
    for place in reversed(range(_BLOCK - 1)):  # a byte one place earlier is shifted by one more zero
        table[place] = byte_alone[table[place + 1] & 0xFF] ^ table[place + 1] >> 8
    return table.ravel(), np.arange(0, _BLOCK * 256, 256), [*table[:4].tolist(), table[-1].tolist()]
