"""Python, tokenizers, the compilers that torch.compile calls, and time limits."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from time import monotonic

import pytest

from harness.machine import software
from harness.machine.files import Mount
from harness.machine.limits import Look, facts_of_module, output_of
from harness.machine.software import (
    MODULES,
    Toolchain,
    Torch,
    _needed,
    check_compile,
    check_imports,
    check_python,
    check_tokenizers,
    check_torch,
    no_torch,
    read_imports,
    read_toolchain,
)

CPU = Torch("2.13.0", None, 4, "AVX2", 2.0, (), None, None)
CUDA = Torch("2.13.0", "12.8", 4, "AVX2", 2.0, ("NVIDIA H100 80GB HBM3",), None, "3.7.0")
GOOD = Toolchain("g++", "g++ 12.2.0", None, None, "/usr/bin/gcc", Path("/tmp/torchinductor_me"), False)


def tools(**changes: object) -> Toolchain:
    return Toolchain(**{**vars(GOOD), **changes})


def test_this_python() -> None:
    line = check_python()
    assert line.status == "ok"
    assert line.finding.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")


@pytest.mark.slow
def test_packages_that_raise_or_crash_or_have_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their metadata is there all the same."""
    for module, text in (
        ("pyarrow", "raise ImportError('libarrow.so: cannot open shared object file')"),
        ("sentencepiece", "import os; os.abort()"),
        ("tokenizers", "raise OSError('too old a libc')"),
    ):
        (tmp_path / f"{module}.py").write_text(text)
    tried = ("rich", "sentencepiece", "tokenizers", "pyarrow")
    monkeypatch.setattr(software, "MODULES", {package: MODULES[package] for package in tried})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    problems = read_imports()
    assert list(problems) == ["sentencepiece", "tokenizers", "pyarrow"]
    lines = {line.finding.split()[0]: line for line in check_imports(problems, torch_works=True)}
    assert {name: line.status for name, line in lines.items()} == {
        "sentencepiece": "warn",  # a run with another tokenizer works
        "tokenizers": "fail",
        "pyarrow": "fail",
    }
    arrow = lines["pyarrow"]
    assert arrow.finding.endswith("cannot be imported: ImportError: libarrow.so: cannot open shared object file")
    assert arrow.fix == "python -m pip install --force-reinstall pyarrow"
    assert "Python ended with status -6" in lines["sentencepiece"].finding


MISSING, SLOW = "ModuleNotFoundError: No module named 'x'", "no answer within 90 s"


@pytest.mark.parametrize(("problems", "torch_works", "lines"), [
    # One that fails with another package is not blamed, transformers not for torch, a missing one named elsewhere.
    (dict.fromkeys(("tokenizers", "transformers"), "OSError: old"), True, [("fail", "tokenizers ", "python -m pip")]),
    ({"transformers": "OSError: libcudart.so"}, False, []),
    ({"transformers": "OSError: libcudart.so"}, True, [("fail", "transformers ", "python -m pip")]),
    (dict.fromkeys(("no-such-package", "transformers"), MISSING), True, []),
    # Installing again helps neither where a limit is reached nor where it is slow.
    ({"PyYAML": "OSError: [Errno 24] Too many open files: 'yaml'"}, True, [("fail", "PyYAML ", "ulimit -n")]),
    (dict.fromkeys(("numpy", "transformers"), SLOW), True,
     [("warn", f"numpy, transformers: {SLOW} to import", "the virtual environment on a local disk")]),
    ({}, True, [("ok", "all packages", "")]),
])  # fmt: skip
def test_which_package_is_blamed(
    problems: dict[str, str], torch_works: bool, lines: list[tuple[str, str, str]]
) -> None:
    found = list(check_imports(problems, torch_works=torch_works))
    assert [line.status for line in found] == [status for status, _, _ in lines]
    for line, (_, finding, fix) in zip(found, lines, strict=True):
        assert line.finding.startswith(finding)
        assert line.fix.startswith(fix)


def test_every_package_of_ours_is_tried() -> None:
    """What is left has a look of its own: torch, NVML and py-spy."""
    assert {*_needed()} - {*MODULES} == {"torch", "nvidia-ml-py", "py-spy"}


def test_torch() -> None:
    assert check_torch(CPU).finding == "2.13.0, AVX2 on the CPU, imported in 2.0 s"
    assert check_torch(Torch(**{**vars(CPU), "import_s": 60.0})).status == "warn"
    assert no_torch("libcudart.so: not found").status == "fail"
    assert "reinstall" not in no_torch(SLOW).fix


@pytest.mark.parametrize(
    ("environ", "status"),
    [({}, "ok"), ({"TOKENIZERS_PARALLELISM": "false"}, "ok"), ({"TOKENIZERS_PARALLELISM": "True"}, "warn")],
)
def test_tokenizers(environ: dict[str, str], status: str) -> None:
    assert check_tokenizers({**environ, "RAYON_NUM_THREADS": "2"}).status == status


@pytest.mark.parametrize(("toolchain", "torch", "words"), [
    (tools(cxx_version=None), CPU, "sudo apt install g++"),
    (tools(headers_problem="fatal error: Python.h: No such file"), CPU, "-dev (or dnf: python3-devel)"),
    (tools(headers_problem="fatal error: 'cmath' file not found"), CPU, "standard library"),
    (tools(openmp_problem="fatal error: omp.h: No such file"), CPU, "libgomp1"),
    (tools(cache_forbids_libraries=True), CPU, "TORCHINDUCTOR_CACHE_DIR=DIR"),
    (GOOD, Torch(**{**vars(CUDA), "triton": None}), "pip install triton"),
    (tools(cc=None), CUDA, "apt install gcc"),
])  # fmt: skip
def test_what_torch_compile_misses(toolchain: Toolchain, torch: Torch, words: str) -> None:
    line = check_compile(toolchain, torch)
    assert line.status == "warn"
    assert words in line.fix


def test_what_torch_compile_needs_is_there() -> None:
    assert check_compile(GOOD, CUDA).finding == "g++ 12.2.0 compiles with Python.h and omp.h, triton 3.7.0"
    assert check_compile(tools(cc=None), CPU).status == "ok"


@pytest.mark.slow
def test_the_compiler_here_is_asked() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    found = read_toolchain({}, [Mount("/", "/", "ext4", ("rw", "noexec"))])
    assert found.cxx == "g++"
    assert found.cxx_version is not None
    assert found.cache_forbids_libraries


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 1])
def test_a_compiler_of_ones_own(tmp_path: Path, status: int) -> None:
    """$CXX with an option; what it says of the program is reported."""
    compiler = tmp_path / "my-cxx"
    script = f'[ "$2" = --version ] && echo "my-cxx 1.0" && exit 0\necho "error: no such header" >&2\nexit {status}'
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    found = read_toolchain({"CXX": f"{compiler} -O1"}, [])
    assert found.cxx_version == "my-cxx 1.0"
    assert found.headers_problem == (None if status == 0 else "error: no such header")


@pytest.mark.slow
def test_no_compiler(tmp_path: Path) -> None:
    assert read_toolchain({"CXX": str(tmp_path / "none")}, []).cxx_version is None


@pytest.mark.slow
def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
        output_of([sys.executable, "-c", "import time; time.sleep(600)"], 0.2)


def test_a_reading_that_hangs_is_left_alone(tmp_path: Path) -> None:
    """A pipe that nobody writes to, as a dead file server would have it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    started = monotonic()
    look = Look(pipe.read_text, 0.2)
    with pytest.raises(TimeoutError, match=r"^no answer within 0\.2 s$"):
        look.result()
    assert monotonic() - started < 60
    pipe.write_text("late")  # lets the thread go
    look._thread.join(60)
    assert look.result() == "late"


def test_a_reading_that_fails_raises_where_it_is_asked_for() -> None:
    look = Look(lambda: 1 // 0, 5)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            look.result()


@pytest.mark.slow
def test_a_module_that_cannot_be_run_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"No module named harness\.machine\.nothing"):
        facts_of_module("harness.machine.nothing", 120)
