"""Frames on the stream socket between an agent and its relay: a payload, after its length.

It imports nothing of ours, so a relay that runs inside another system can use it alone.
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">I")
MAX_PAYLOAD = 16 << 20
"""Bytes. The largest payload has the evidence of 16 ranks, of 64 KiB each."""


class FrameError(ValueError):
    """The stream is not one of frames, or a payload is too long."""


def framed(payload: bytes) -> bytes:
    """Returns the frame of `payload`.

    Raises:
        FrameError: it is longer than `MAX_PAYLOAD`.
    """
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a payload of {len(payload)} bytes is longer than {MAX_PAYLOAD}")
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Splits the bytes that a stream brings into payloads."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the payloads that `data`, the next bytes of the stream, completes.

        Raises:
            FrameError: it is not a stream of frames.
        """
        self._rest += data
        payloads = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MAX_PAYLOAD:
                raise FrameError(f"a frame says that it has {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            payloads.append(bytes(self._rest[_LENGTH.size : end]))
            del self._rest[:end]
        return payloads
