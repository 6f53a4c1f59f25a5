"""Read this machine's IPv4 addresses from the kernel, without name resolution, which may take minutes or fail."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NAME_BYTES = 15  # IFNAMSIZ without its terminator
LOOPBACK = "127."


def own_addresses() -> dict[str, str]:
    """Return {interface name: its first IPv4 address}, with loopback last.

    Interfaces without an address are omitted.
    """
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_NAME_BYTES])
            with suppress(OSError):  # The interface has no address.
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(addresses.items(), key=lambda entry: entry[1].startswith(LOOPBACK)))


def interface_of(address: str) -> str:
    """Return the name of the interface whose first IPv4 address is ``address``; "" if no interface has it."""
    return next((name for name, interface_address in own_addresses().items() if interface_address == address), "")
