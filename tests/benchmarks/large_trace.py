"""A large trace of torch.profiler, made up but like a real one, and the same every time.

Training steps of a transformer on a CUDA device, in the writer's own layout: operators with shapes, types and strides,
launches, kernels, the arrows between them, allocations, backward on a thread of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.study.traces.kineto_text import FOOTER, complete, flow, header, memory

LAYERS = 24
MAIN, AUTOGRAD, STREAM = 4711, 4790, 7
BASE_NS = 1_790_000_000_000_000_000
HTA_METADATA = {"backend": "nccl", "rank": 0, "world_size": 1, "pg_count": 0, "pg_config": [], "nccl_version": "2.27.5"}


@dataclass
class Op:
    """An operator: those inside it, and the kernel that it launches itself, if any."""

    name: str
    dims: list[list[int]]
    inside: list[Op] = field(default_factory=list)
    kernel: str = ""


def gemm(shape: str) -> str:
    return (
        f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{shape}x64_warpgroupsize2x1x1"
        "_execute_segment_k_off_kernel__5x_cublas"
    )


def pointwise(what: str) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{what}<c10::BFloat16>, std::array<char*, 3ul> >"
        f"(int, at::native::{what}<c10::BFloat16>, std::array<char*, 3ul>)"
    )


def linear(wide: int, out: int) -> Op:
    rows = [[4096, wide], [out, wide]]
    addmm = Op("aten::mm", rows, kernel=gemm("128x256"))
    return Op("aten::linear", rows, [Op("aten::t", [rows[1]], [Op("aten::transpose", [rows[1]])]), addmm])


def norm(wide: int) -> Op:
    inner = Op("aten::native_layer_norm", [[4096, wide], [wide]], [Op("aten::empty", [[]])], pointwise("LayerNorm"))
    return Op("aten::layer_norm", [[4096, wide], [wide]], [inner])


def forward_layer() -> list[Op]:
    wide = 2048
    attention = Op(
        "aten::scaled_dot_product_attention",
        [[2, 16, 2048, 128]] * 3,
        [Op("aten::_flash_attention_forward", [[2, 2048, 16, 128]] * 3, kernel="flash_fwd_kernel<Flash_fwd_traits>")],
    )
    add = Op("aten::add", [[2, 2048, wide]] * 2, kernel=pointwise("CUDAFunctor_add"))
    gelu = Op("aten::gelu", [[2, 2048, 4 * wide]], kernel=pointwise("GeluCUDAKernelImpl"))
    return [norm(wide), *[linear(wide, wide)] * 3, attention, linear(wide, wide), add, norm(wide),
            linear(wide, 4 * wide), gelu, linear(4 * wide, wide), add]  # fmt: skip


def backward_of(op: Op) -> Op:
    short = op.name.removeprefix("aten::")
    return Op(
        f"autograd::engine::evaluate_function: {short}Backward0", [], [Op(f"{short}Backward0", op.dims, [op, op])]
    )


class Writer:
    """A host that launches and a device that follows, each with its clock in nanoseconds."""

    def __init__(self) -> None:
        self._random = random.Random(4)
        self.now, self._device, self.kernels_ns = 3_000_000_000, 0, 0
        self._ids, self._allocated = 0, 1 << 30

    def span(self, name: str, tid: int, inside: Iterator[str]) -> Iterator[str]:
        """A mark around what ``inside`` yields."""
        start = self.now
        self.now += 700
        yield from inside
        self._ids += 1
        yield complete(name, start, self.now - start, "user_annotation", MAIN, tid, External_id=self._ids)

    def op(self, op: Op, tid: int) -> Iterator[str]:
        self._ids += 1
        number, start = self._ids, self.now
        self.now += self._random.randrange(800, 2400)
        for inner in op.inside:
            yield from self.op(inner, tid)
        if op.kernel:
            yield from self._launch(op.kernel, number, tid)
        self.now += self._random.randrange(300, 900)
        arguments = {"Record function id": 0, "Concrete Inputs": [""] * len(op.dims)}
        arguments |= {"Input type": ["c10::BFloat16"] * len(op.dims), "Input Strides": op.dims, "Input Dims": op.dims}
        yield complete(op.name, start, self.now - start, "cpu_op", MAIN, tid, **{"External id": number, **arguments})

    def _launch(self, kernel: str, operator: int, tid: int) -> Iterator[str]:
        self._ids += 1
        correlation, start = self._ids, self.now
        size = self._random.randrange(1 << 14, 1 << 22) & ~511
        self._allocated += size if self._allocated < 1 << 32 else -size
        yield memory(start, size, self._allocated, (1, 0), MAIN, tid)
        self.now += self._random.randrange(2500, 4500)
        ids = {"External id": operator, "cbid": 211, "correlation": correlation}
        yield complete("cudaLaunchKernel", start, self.now - start, "cuda_runtime", MAIN, tid, **ids)
        yield flow("s", correlation, start, MAIN, tid)
        begin = max(self._device + 900, self.now + 2000)
        lasts = self._random.randrange(3000, 60_000)
        self._device = begin + lasts
        self.kernels_ns += lasts
        ids = {"External id": operator, "queued": 0, "device": 0, "context": 1, "stream": STREAM}
        launched = {"correlation": correlation, "registers per thread": 128, "shared memory": 0, "blocks per SM": 1.5}
        grid = {"warps per SM": 12.0, "grid": [132, 4, 1], "block": [384, 1, 1], "est. achieved occupancy %": 37}
        yield complete(kernel, begin, lasts, "kernel", 0, STREAM, **ids, **launched, **grid)
        yield flow("f", correlation, begin, 0, STREAM)

    def step(self, number: int) -> Iterator[str]:
        layer = forward_layer()
        clip = Op("aten::_foreach_norm", [[2048, 2048]] * 8, kernel=pointwise("LpNormFunctor"))
        update = Op("aten::_fused_adamw_", [[2048, 2048]] * 8, kernel=pointwise("FusedAdamMathFunctor"))
        phases: list[tuple[str, list[Op], int]] = [
            ("forward", layer * LAYERS, MAIN),
            ("backward", [backward_of(op) for op in reversed(layer)] * LAYERS, AUTOGRAD),
            ("optimizer", [clip, update] * LAYERS, MAIN),
        ]

        def all_phases() -> Iterator[str]:
            for name, ops, tid in phases:
                yield from self.span(f"phase: {name}", MAIN, (text for op in ops for text in self.op(op, tid)))

        yield from self.span(f"ProfilerStep#{number}", MAIN, all_phases())
        self.now = max(self.now, self._device)  # the loop waits for the device


def write_large_trace(path: Path, events: int) -> tuple[int, int]:
    """Write a trace of whole steps with at least ``events`` complete and memory events.

    How many it has, and the time of all its kernels in nanoseconds.
    """
    writer, written = Writer(), 0
    with open(path, "w") as file:
        file.write(header(BASE_NS, distributedInfo=HTA_METADATA))
        for number in range(10_000):
            for text in writer.step(number):
                file.write(text)
                written += "ac2g" not in text
            if written >= events:
                break
        file.write(FOOTER)
    return written, writer.kernels_ns
