"""An S3-compatible server of this process' own (moto), where it is installed, and what lies on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def serving(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server; this process' environment and those of its children lead there."""
    server = pytest.importorskip(
        "moto.server", reason="moto is not installed: pip install 'llm-training-harness[s3-test]'"
    )
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    address = f"http://{host}:{port}"
    for name, value in environment(address).items():
        patch.setenv(name, value)
    try:
        yield address
    finally:
        running.stop()


def environment(address: str) -> dict[str, str]:
    """Variables that lead to the server at ``address``, and to no other."""
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
    return keys | {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


def filesystem(address: str) -> Any:
    """pyarrow's view of the server at ``address``, which may make buckets."""
    import pyarrow.fs as fs

    return fs.S3FileSystem(
        endpoint_override=address.removeprefix("http://"), scheme="http", region="us-east-1",
        allow_bucket_creation=True,
    )  # fmt: skip
