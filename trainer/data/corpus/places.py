"""Opens a corpus' files: local ones, or behind a URL (S3, GCS, Azure and HDFS by pyarrow, other schemes by fsspec).

A local file is identified by its content, a remote one by its size and its ETag. Without an ETag, its time of change is
used. Documents of remote files are hashed while they are checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trainer.data.corpus.base import first_line
from trainer.errors import MACHINE_FAULTS, InputError

KEY = "data.corpus.path"
# Schemes that pyarrow opens by itself.
_NATIVE = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_CONNECT_S, _ATTEMPTS = 10, 3
_SILENT_S = 60  # timeout of an http(s) server; its package's own is 5 minutes per request
WEB = ("http", "https")


def scheme_of(path: str) -> str | None:
    """Return the scheme, such as ``s3`` of ``s3://bucket/file``; None for a path of this machine."""
    scheme, mark, _ = path.partition("://")
    return scheme.lower() if mark and scheme.isascii() and scheme.replace("+", "").isalnum() else None


def is_remote(path: str) -> bool:
    """Return True for a URL, except for ``file://``, which is a path of this machine."""
    return scheme_of(path) not in (None, "file")


def local(path: str) -> str:
    """Convert a ``file://`` URL to a path; return any other path unchanged."""
    if scheme_of(path) != "file":
        return path
    parts = path.split("://", 1)[1]
    host, _, rest = parts.partition("/")
    if host not in ("", "localhost"):
        raise InputError(f"{KEY}: {path}: a file:// URL cannot name another machine; allowed: file:///PATH")
    return "/" + unquote(rest)


def url_of(scheme: str, path: str) -> str:
    """Return the URL of ``path`` on a remote filesystem of that scheme. A path that is a URL already stays as it is."""
    return path if "://" in path else f"{scheme}://{path}"


def check_scheme(path: str) -> None:
    """Raise InputError for a URL that no installed package can open. The network is not used."""
    if is_remote(path):
        with one_line_errors(path):
            resolved(path)


def filesystem_of(url: str, key: str) -> tuple[Any, str]:
    """Return the filesystem of ``url`` and the path in it. Raises InputError, naming ``key``, if that fails."""
    import pyarrow.fs as fs

    try:
        if scheme_of(url) is None:
            raise InputError(f"{KEY}: {url}: not a URL; give one, such as s3://BUCKET/FOLDER or file:///FOLDER")
        if not is_remote(url):
            return fs.LocalFileSystem(), local(url)
        with one_line_errors(url):
            return resolved(url)
    except InputError as error:
        raise InputError(str(error).replace(KEY, key, 1)) from error


def open_file(name: str, mapped: bool = False) -> Any:
    """Return the opened file. ``mapped``: in memory, where its pages count as this process'. Raises InputError."""
    import pyarrow as pa

    if is_remote(name):
        with one_line_errors(name):
            filesystem, path = resolved(name)
            return filesystem.open_input_file(path)
    try:
        if mapped and Path(name).stat().st_size:  # An empty file cannot be mapped.
            return pa.memory_map(name)
        return pa.OSFile(name)
    except OSError as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: BaseException) -> Exception:
    """Return the error to raise for an unreadable file: ``error`` for a fault of this machine, else an InputError."""
    if isinstance(error, OSError) and error.errno in MACHINE_FAULTS and error.errno != errno.EIO:
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else _reason(error)
    return InputError(f"{name}: cannot be read ({reason})")


def _reason(error: BaseException) -> str:
    silent = isinstance(error, TimeoutError) and not str(error)  # fsspec's timeouts have no message.
    return "no answer in time" if silent else first_line(error)


def identity(url: str) -> list[str | int]:
    """Return values that identify the content of a remote file: address, size, and ETag or time of change."""
    with one_line_errors(url):
        filesystem, path = resolved(url)
        with filesystem.open_input_file(path) as file:
            facts = _metadata(file)
            size = int(file.size())
        etag = facts.get("ETag")
        return [url, size, etag or str(filesystem.get_file_info(path).mtime_ns)]


def _metadata(file: Any) -> dict[str, str]:
    try:
        return {_text(key): _text(value) for key, value in (file.metadata() or {}).items()}
    except (NotImplementedError, OSError):
        return {}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _check_url(url: str) -> None:
    if "@" in url.split("://", 1)[1].partition("/")[0]:
        hidden = url.split("@", 1)[1]
        raise InputError(
            f"{KEY}: ...@{hidden}: a scenario is stored with its study and must not contain credentials; set them in "
            "the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws)"
        )


def resolved(url: str) -> tuple[Any, str]:
    """Return the pyarrow filesystem of ``url`` and the path within it. Raises InputError for a URL with credentials."""
    _check_url(url)
    scheme, rest = url.split("://", 1)
    if scheme.lower() == "s3":
        return _s3(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""), rest.rstrip("/")
    if scheme.lower() in _NATIVE:
        import pyarrow.fs as fs

        filesystem, path = fs.FileSystem.from_uri(url)
        return filesystem, path
    filesystem = _of_fsspec(scheme.lower())
    stripped = filesystem.handler.fs._strip_protocol(url)
    return filesystem, stripped[0] if isinstance(stripped, list) else str(stripped)


@lru_cache(maxsize=8)
def _s3(endpoint: str) -> Any:
    """Return the S3 filesystem. ``endpoint``: address of the server; "" for Amazon's."""
    import pyarrow.fs as fs

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    parts = urlsplit(endpoint)
    place = {"endpoint_override": parts.netloc or parts.path, "scheme": parts.scheme or "https"} if endpoint else {}
    return fs.S3FileSystem(
        region=region or ("us-east-1" if endpoint else None),
        connect_timeout=_CONNECT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **place,
    )


@lru_cache(maxsize=8)
def _of_fsspec(scheme: str) -> Any:
    import pyarrow.fs as fs

    try:
        import fsspec

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **_limits(scheme))))
    except (ImportError, ValueError) as error:
        schemes = ", ".join(("file", *_NATIVE))
        raise InputError(
            f"{KEY}: {scheme}://: {first_line(error)}; allowed: {schemes}, and schemes of fsspec packages"
        ) from error


def _limits(scheme: str) -> dict[str, Any]:
    """Return fsspec's settings that limit the wait for a silent server (http, https); empty for other schemes."""
    if scheme not in WEB:
        return {}
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENT_S)}}


@contextmanager
def one_line_errors(url: str) -> Iterator[None]:
    """Turn any error in the body, raised by a server or its library, into an InputError of one line with ``url``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Each filesystem has its own kinds.
        raise InputError(f"{url}: cannot be read ({_reason(error)})") from error
