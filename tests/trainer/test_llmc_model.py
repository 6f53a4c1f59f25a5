"""Model files of llm.c: written, read by an independent reader of their layout, read back, and every damaged one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.refusals import refusal
from trainer.errors import InputError
from trainer.llmc_model import build, header_of, load_seed, not_finite, read_header, read_model, write_model
from trainer.model import Shape, build_model

SHAPE = Shape("gpt2", layers=2, width=8, heads=2, kv_heads=2, ffn_width=32, vocab_size=130, positions=12)


def made(seed: int = 0, **other: Any) -> Any:
    """A tiny GPT-2 whose biases and norms are not what they begin as: one in a wrong place would show."""
    from dataclasses import replace

    torch.manual_seed(seed)
    model = build_model(replace(SHAPE, **other)).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn_like(one) * 0.3)
    return model


class PublishedLayout:
    """A reader and forward pass of the published layout, from its description alone: numpy, and nothing of ours.

    The header is 256 int32: magic 20240326, version, maxT, V, L, NH, C, Vp. Then wte (Vp, C), wpe (maxT, C), and for
    all layers ln1w, ln1b, qkvw (3C, C), qkvb, attprojw (C, C), attprojb, ln2w, ln2b, fcw (4C, C), fcb, fcprojw (C, 4C),
    fcprojb; then lnfw, lnfb. Weights are used as x @ w.T + b.
    """

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        header = np.frombuffer(raw[:1024], np.int32)
        assert header[0] == 20240326
        version, positions, self.vocab, layers, self.heads, width, padded = (int(one) for one in header[1:8])
        assert not header[8:].any()
        assert version in (3, 5)
        self.layers, self.width, self.positions = layers, width, positions
        if version == 3:
            self.values = np.frombuffer(raw[1024:], np.float32).astype(np.float64)
        else:
            bits = np.frombuffer(raw[1024:], np.uint16).astype(np.uint32) << 16
            self.values = bits.view(np.float32).astype(np.float64)
        self.at = 0
        self.wte, self.wpe = self.take(padded, width), self.take(positions, width)
        self.ln1w, self.ln1b = self.take(layers, width), self.take(layers, width)
        self.qkvw, self.qkvb = self.take(layers, 3 * width, width), self.take(layers, 3 * width)
        self.attprojw, self.attprojb = self.take(layers, width, width), self.take(layers, width)
        self.ln2w, self.ln2b = self.take(layers, width), self.take(layers, width)
        self.fcw, self.fcb = self.take(layers, 4 * width, width), self.take(layers, 4 * width)
        self.fcprojw, self.fcprojb = self.take(layers, width, 4 * width), self.take(layers, width)
        self.lnfw, self.lnfb = self.take(width), self.take(width)
        assert self.at == len(self.values)

    def take(self, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        self.at += size
        return self.values[self.at - size : self.at].reshape(shape)

    @staticmethod
    def norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * w + b

    def logits(self, ids: list[int]) -> np.ndarray:
        length, heads, width = len(ids), self.heads, self.width // self.heads
        x = self.wte[ids] + self.wpe[:length]
        for at in range(self.layers):
            qkv = self.norm(x, self.ln1w[at], self.ln1b[at]) @ self.qkvw[at].T + self.qkvb[at]
            q, k, v = (one.reshape(length, heads, width).transpose(1, 0, 2) for one in np.split(qkv, 3, axis=1))
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
            scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended = (weights @ v).transpose(1, 0, 2).reshape(length, self.width)
            x = x + attended @ self.attprojw[at].T + self.attprojb[at]
            h = self.norm(x, self.ln2w[at], self.ln2b[at]) @ self.fcw[at].T + self.fcb[at]
            h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
            x = x + h @ self.fcprojw[at].T + self.fcprojb[at]
        return self.norm(x, self.lnfw, self.lnfb) @ self.wte[: self.vocab].T


@pytest.mark.parametrize(("dtype", "most"), [("fp32", 2e-5), ("bf16", 2e-5)])
def test_an_independent_reader_computes_our_logits(tmp_path: Path, dtype: Any, most: float) -> None:
    """Of bf16 the model is compared whose weights are rounded: the file holds those."""
    model, ids = made(), [5, 129, 0, 77, 5, 31]
    write_model(model, tmp_path / "model.bin", dtype)
    published = PublishedLayout(tmp_path / "model.bin")
    assert (published.vocab, len(published.wte), published.positions) == (130, 256, 12)
    assert not published.wte[130:].any()
    if dtype == "bf16":
        model = model.to(torch.bfloat16).float()
    with torch.no_grad():
        ours = model.double()(torch.tensor([ids])).logits[0].numpy()
    largest = float(np.abs(ours - published.logits(ids)).max())
    print(f"largest difference of a logit, {dtype}: {largest:.2e}; logits up to {np.abs(ours).max():.2f}")
    assert largest < most
    assert np.abs(ours).max() > 0.5


def test_gpt2_s_vocabulary_is_padded_to_50304(tmp_path: Path) -> None:
    model = made(layers=1, width=2, heads=1, kv_heads=1, ffn_width=8, vocab_size=50257, positions=2)
    header = write_model(model, tmp_path / "model.bin", "bf16")
    assert (header.vocab_size, header.padded_vocab_size) == (50257, 50304)
    assert read_header(tmp_path / "model.bin") == header
    more = made(layers=1, width=2, heads=1, kv_heads=1, ffn_width=8, vocab_size=50304, positions=2)
    assert header_of(more, "bf16", vocab_size=50257) == header


@examples(25)
@given(
    layers=st.integers(1, 3), heads=st.integers(1, 3), head=st.integers(1, 4), vocab=st.integers(1, 300),
    positions=st.integers(1, 9), dtype=st.sampled_from(["fp32", "bf16"]),
)  # fmt: skip
def test_what_is_written_is_read_back(layers, heads, head, vocab, positions, dtype, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("llmc") / "model.bin"
    shape = {"layers": layers, "width": heads * head, "heads": heads, "kv_heads": heads, "ffn_width": 4 * heads * head}
    model = made(**shape, vocab_size=vocab, positions=positions)
    with torch.no_grad():
        model.transformer.ln_f.bias[0] = float("nan")  # allowed: a diverged training is handed over as it is
    header = write_model(model, path, dtype)
    assert path.stat().st_size == header.size_bytes
    assert header.values == sum(one.numel() for one in model.parameters()) + shape["width"] * (-vocab % 128)
    found, weights = read_model(path)
    assert found == header
    kept = torch.float32 if dtype == "fp32" else torch.bfloat16
    for name, one in dict(model.named_parameters()).items():
        assert torch.equal(weights[name].nan_to_num(7), one.to(kept).nan_to_num(7)), name
    assert not_finite(weights) == 1
    again = dict(build(path).named_parameters())
    assert all(torch.equal(again[name].nan_to_num(7), one.float().nan_to_num(7)) for name, one in weights.items())


def test_a_seed_fits_the_model_that_the_scenario_describes(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    seed, longer = made(1), made(1, positions=20)
    write_model(seed, path, "fp32")
    model = made(2)
    assert load_seed(model, path) == ""
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), seed.parameters(), strict=True))
    write_model(longer, path, "fp32")
    assert load_seed(model, path) == f"{path}: its positions beyond 12 of 20 are left out"
    assert torch.equal(model.transformer.wpe.weight, longer.transformer.wpe.weight[:12])
    for other, message in (
        ({"layers": 1}, "model.layers: 1, but "),
        ({"vocab_size": 128}, "model.vocab_size: 128, but "),
        ({"heads": 1, "kv_heads": 1}, "model.heads: 1, but "),
        ({"positions": 21}, "data.sequence_length: 21, but "),
        ({"ffn_width": 16}, "llm.c's feed-forward width is four times the width (32), and this model's is 16"),
    ):
        assert message in refusal(load_seed, made(**other), path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    llama = build_model(replace(SHAPE, family="llama", kv_heads=1))
    with pytest.raises(InputError, match="only GPT-2, and this is a LlamaForCausalLM"):
        write_model(llama, tmp_path / "model.bin", "fp32")
    model = made()
    model.config.activation_function = "relu"
    with pytest.raises(InputError, match="computes activation_function 'gelu_new' only, and this model has 'relu'"):
        write_model(model, tmp_path / "model.bin", "fp32")
    with pytest.raises(InputError, match="a vocabulary of 131: this model has 130 token ids"):
        header_of(made(), "fp32", vocab_size=131)
    assert not list(tmp_path.iterdir())


def changed(content: bytes, **fields: int) -> bytes:
    header = np.frombuffer(content[:1024], "<i4").copy()
    for place, value in fields.items():
        header[int(place[1:])] = value
    return header.tobytes() + content[1024:]


def test_every_damaged_file_is_one_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole.bin"
    write_model(made(), whole, "fp32")
    content, path = whole.read_bytes(), tmp_path / "model.bin"
    size = f"{len(content):,}"
    for damaged, message in (
        (b"", "not a model file of llm.c (its first int32 must be 20240326)"),
        (content[:1023], "1,023 bytes, but its header needs 1,024: cut short"),
        (changed(content, _0=20240520), "not a model file of llm.c"),
        (changed(content, _1=1), "version 1 of llm.c's model files: an older layout without a padded vocabulary; "),
        (changed(content, _1=4), "version 4 of llm.c's model files; allowed: 3 (float32), 5 (bfloat16)"),
        (changed(content, _1=5), f"{size} bytes, but its header expects "),
        (changed(content, _4=0), "its header says 0 layers; allowed: at least 1"),
        (changed(content, _6=-8), "its header says -8 width; allowed"),
        (changed(content, _5=3), "its width 8 is not a multiple of its 3 heads"),
        (changed(content, _7=129), "its padded vocabulary (129) is smaller than its vocabulary (130)"),
        (changed(content, _6=2**31 - 2, _4=2**31 - 1), "cut short by "),
        (content[:-1], f"but its header expects {size}: cut short by 1 bytes"),
        (content[:1024], "cut short by"),
        (content + b"\0\0", f"but its header expects {size}: 2 bytes too many"),
    ):
        path.write_bytes(damaged)
        assert message in refusal(build, path)
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="no file, but a folder, a pipe or a device"):
            read_header(endless)
    with pytest.raises(InputError, match="cannot be read"):
        read_header(tmp_path / "none.bin")
