"""The address of `--http`: where a server for people and Prometheus listens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_MAX_PORT = 65535
_FORM = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """An address of this machine, and a port; port 0: any that is free."""

    ip: IPv4Address | IPv6Address
    port: int

    @classmethod
    def parse(cls, text: str) -> HttpAddress:
        """Parse `IP:PORT`, `[IPV6]:PORT`, `localhost:PORT` or a port alone, which is on loopback.

        Raises:
            ValueError: it is none.
        """
        match = _FORM.fullmatch(text)
        host = (match["host"] or "127.0.0.1").strip("[]") if match is not None else ""
        try:
            ip = ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            ip = None
        if match is None or ip is None or int(match["port"]) > _MAX_PORT:
            raise ValueError(
                f"{text!r} is no IP address and port, such as 127.0.0.1:9090 (this machine alone) "
                "or [::1]:9090"
            )
        return cls(ip, int(match["port"]))

    @property
    def warning(self) -> str:
        """A warning, if others than users of this machine can connect; empty: they cannot."""
        if self.ip.is_loopback:
            return ""
        return (
            f"{self} is not loopback, and there are no passwords: whoever reaches it can see where "
            "the jobs stand and why they failed; 127.0.0.1 and an SSH tunnel keep others out"
        )

    def __str__(self) -> str:
        host = f"[{self.ip}]" if self.ip.version == 6 else str(self.ip)
        return f"{host}:{self.port}"
