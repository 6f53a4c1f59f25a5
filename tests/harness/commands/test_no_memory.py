"""A command that has too little memory says so in one line, also where a library cannot even be loaded."""

from __future__ import annotations

import resource

import pytest

from harness import cli

UNLIMITED = resource.RLIM_INFINITY
NO_NUMPY = ImportError("numpy C-extensions failed: libscipy_openblas64.so: failed to map segment from shared object")
LIMITED = "out of memory: the address space is limited to 100 MiB; fix: ulimit -v unlimited"


@pytest.mark.parametrize(("error", "limit_bytes", "line"), [
    (MemoryError(), UNLIMITED, "out of memory"),
    (MemoryError(), 100 << 20, LIMITED),
    (NO_NUMPY, 100 << 20, LIMITED),
    (NO_NUMPY, UNLIMITED, None),
    (ModuleNotFoundError("numpy"), 100 << 20, None),
])  # fmt: skip
def test_memory_is_blamed_where_it_may_be_the_cause(
    error: Exception,
    limit_bytes: int,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(cli.Command, "function", lambda _: fails)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit_bytes, limit_bytes))
    if line is None:
        with pytest.raises(ImportError):
            cli.main(["schema"])
    else:
        assert cli.main(["schema"]) == 1
        assert capsys.readouterr().err == f"harness: {line}\n"
