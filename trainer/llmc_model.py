"""Reads and writes the model files of llm.c (https://github.com/karpathy/llm.c, write_model in train_gpt2.py).

A file is a header of 256 int32 and 16 tensors, little-endian, each with all layers one after the other:

    header    20240326, version (3: float32, 5: bfloat16), positions, vocabulary, layers, heads, width,
              padded vocabulary
    tensors   in the order of :data:`TENSORS`

The token embedding has the rows of the padded vocabulary, a multiple of 128 (50,304 for GPT-2's 50,257). Rows beyond
the vocabulary are zero and belong to no token. Matrices have a row for each output, as in torch.nn.Linear. GPT-2 of
transformers has them transposed (Conv1D). The output projection is the token embedding. Every such model has the same
further settings: a feed-forward width of four times the width, GELU by tanh, an epsilon of 1e-5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trainer.checkpoint_folder import CONFIG, WEIGHTS
from trainer.data import cache
from trainer.data.kept_tokenizer import write as write_tokenizer
from trainer.errors import InputError, literal
from trainer.files import expanded, remove_leftovers_of, write_atomically
from trainer.json_types import Json

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from trainer.data.tokenizers import TokenizerInfo

MAGIC, HEADER = 20240326, 256  # HEADER: int32 values
PADDED_TO = 128  # The number of rows of the token embedding is a multiple of this.
LlmcDtype = Literal["fp32", "bf16"]
VERSIONS: dict[int, LlmcDtype] = {3: "fp32", 5: "bf16"}
_BYTES = {"fp32": 4, "bf16": 2}
_FIELDS = ("positions", "vocab_size", "layers", "heads", "width", "padded_vocab_size")


class LlmcTensor(NamedTuple):
    """One tensor: GPT2LMHeadModel's name, shape in letters (V, T, C, with a factor), ``turned`` if transposed."""

    name: str
    shape: tuple[str, ...]
    turned: bool = False

    @property
    def is_of_layers(self) -> bool:
        """True if every layer has such a tensor. The file has those of all layers one after the other."""
        return "{}" in self.name


TENSORS = (
    LlmcTensor("transformer.wte.weight", ("V", "C")),
    LlmcTensor("transformer.wpe.weight", ("T", "C")),
    LlmcTensor("transformer.h.{}.ln_1.weight", ("C",)),
    LlmcTensor("transformer.h.{}.ln_1.bias", ("C",)),
    LlmcTensor("transformer.h.{}.attn.c_attn.weight", ("3C", "C"), turned=True),
    LlmcTensor("transformer.h.{}.attn.c_attn.bias", ("3C",)),
    LlmcTensor("transformer.h.{}.attn.c_proj.weight", ("C", "C"), turned=True),
    LlmcTensor("transformer.h.{}.attn.c_proj.bias", ("C",)),
    LlmcTensor("transformer.h.{}.ln_2.weight", ("C",)),
    LlmcTensor("transformer.h.{}.ln_2.bias", ("C",)),
    LlmcTensor("transformer.h.{}.mlp.c_fc.weight", ("4C", "C"), turned=True),
    LlmcTensor("transformer.h.{}.mlp.c_fc.bias", ("4C",)),
    LlmcTensor("transformer.h.{}.mlp.c_proj.weight", ("C", "4C"), turned=True),
    LlmcTensor("transformer.h.{}.mlp.c_proj.bias", ("C",)),
    LlmcTensor("transformer.ln_f.weight", ("C",)),
    LlmcTensor("transformer.ln_f.bias", ("C",)),
)


@dataclass(frozen=True)
class LlmcHeader:
    """Content of the header of an llm.c file."""

    dtype: LlmcDtype
    positions: int
    vocab_size: int
    layers: int
    heads: int
    width: int
    padded_vocab_size: int

    def shape_of(self, tensor: LlmcTensor) -> tuple[int, ...]:
        """Return the shape that ``tensor`` has in the file, for a single layer."""
        letters = {"V": self.padded_vocab_size, "T": self.positions, "C": self.width}
        return tuple(letters[dimension[-1]] * int(dimension[:-1] or 1) for dimension in tensor.shape)

    @property
    def title(self) -> str:
        """Name of the model with its dimensions, for sentences."""
        padded = f", padded to {self.padded_vocab_size:,}" if self.padded_vocab_size != self.vocab_size else ""
        return (
            f"GPT-2 (layers {self.layers}, heads {self.heads}, width {self.width:,}, positions {self.positions:,}, "
            f"token ids {self.vocab_size:,}{padded})"
        )

    @property
    def values(self) -> int:
        """Number of values of all tensors, which follow the header."""
        sizes = (int(np.prod(self.shape_of(tensor), dtype=object)) for tensor in TENSORS)
        return sum(
            size * (self.layers if tensor.is_of_layers else 1) for tensor, size in zip(TENSORS, sizes, strict=True)
        )

    @property
    def size_bytes(self) -> int:
        """Expected size of the whole file in bytes."""
        return 4 * HEADER + _BYTES[self.dtype] * self.values

    def config(self) -> dict[str, Json]:
        """Return the content of a transformers config.json for such a model. It has no dropout, like llm.c."""
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": self.vocab_size,
            "n_positions": self.positions,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": None,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": True,
            "dtype": {"fp32": "float32", "bf16": "bfloat16"}[self.dtype],
        }


def read_header(path: Path) -> LlmcHeader:
    """Read the header. Raises InputError if it is invalid, or does not fit the size of the file."""
    try:
        if not S_ISREG((stat := path.stat()).st_mode):  # A pipe or a device may have no end.
            raise InputError(f"{path}: no file, but a folder, a pipe or a device; allowed: a model file of llm.c")
        size = stat.st_size
        with path.open("rb") as file:
            begin = file.read(4 * HEADER)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    integers = np.frombuffer(begin, "<i4") if len(begin) == 4 * HEADER else None
    if integers is None and begin[:4] == MAGIC.to_bytes(4, "little"):
        raise InputError(f"{path}: {size:,} bytes, but its header needs {4 * HEADER:,}: cut short")
    if integers is None or integers[0] != MAGIC:
        raise InputError(f"{path}: not a model file of llm.c (its first int32 must be {MAGIC})")
    version, *fields = (int(integer) for integer in integers[1:8])
    if version not in VERSIONS:
        older = ": an older layout without a padded vocabulary" if version in (1, 2) else ""
        raise InputError(f"{path}: version {version} of llm.c's model files{older}; allowed: 3 (float32), 5 (bfloat16)")
    dimensions = dict(zip(_FIELDS, fields, strict=True))
    for name, value in dimensions.items():
        if value < 1:
            raise InputError(f"{path}: damaged: its header says {value} {name}; allowed: at least 1")
    header = LlmcHeader(VERSIONS[version], **dimensions)
    if header.width % header.heads:
        raise InputError(f"{path}: damaged: its width {header.width} is not a multiple of its {header.heads} heads")
    if header.padded_vocab_size < header.vocab_size:
        raise InputError(
            f"{path}: damaged: its padded vocabulary ({header.padded_vocab_size:,}) is smaller than its vocabulary "
            f"({header.vocab_size:,})"
        )
    if size != header.size_bytes:
        differs = size - header.size_bytes
        difference = f"cut short by {-differs:,} bytes" if differs < 0 else f"{differs:,} bytes too many"
        raise InputError(f"{path}: {size:,} bytes, but its header expects {header.size_bytes:,}: {difference}")
    return header


def read_model(path: Path) -> tuple[LlmcHeader, dict[str, torch.Tensor]]:
    """Return header and weights by transformers' names, in the file's dtype, without padding rows."""
    header = read_header(path)
    try:
        return header, dict(_tensors(path, header))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _tensors(path: Path, header: LlmcHeader) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    numpy_type = "<f4" if header.dtype == "fp32" else "<i2"  # numpy has no bfloat16, so torch views its bits.
    values: NDArray[Any] = np.memmap(path, numpy_type, "r", offset=4 * HEADER)
    place = 0
    for tensor in TENSORS:
        shape = header.shape_of(tensor)
        size = int(np.prod(shape))
        for layer in range(header.layers if tensor.is_of_layers else 1):
            part = values[place : place + size].reshape(shape)
            place += size
            if tensor.shape[0] == "V":
                part = part[: header.vocab_size]
            weight = torch.from_numpy(np.array(part.T if tensor.turned else part, order="C"))
            yield tensor.name.format(layer), weight if header.dtype == "fp32" else weight.view(torch.bfloat16)


def write_model(model: torch.nn.Module, path: Path, dtype: LlmcDtype, vocab_size: int | None = None) -> LlmcHeader:
    """Write a GPT-2 as an llm.c file and return its header. Raises InputError if llm.c has no such model."""
    import torch

    header = header_of(model, dtype, vocab_size)
    weights = model.state_dict()
    version = next(number for number, version_dtype in VERSIONS.items() if version_dtype == dtype)
    head = np.zeros(HEADER, "<i4")
    head[:8] = MAGIC, version, *(getattr(header, name) for name in _FIELDS)
    bits = torch.float32 if dtype == "fp32" else torch.bfloat16

    def write(to: Path) -> None:
        with to.open("wb") as file:
            file.write(head.tobytes())
            for tensor in TENSORS:
                rows = header.shape_of(tensor)[0]
                for layer in range(header.layers if tensor.is_of_layers else 1):
                    weight = weights[tensor.name.format(layer)].detach().to("cpu", bits)
                    if tensor.turned:
                        weight = weight.T
                    if tensor.shape[0] == "V":
                        padding = torch.zeros(rows - header.vocab_size, header.width, dtype=bits)
                        weight = torch.cat([weight[: header.vocab_size], padding])
                    contiguous = weight.contiguous()
                    array = contiguous.numpy() if dtype == "fp32" else contiguous.view(torch.int16).numpy()
                    file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())

    target = expanded(path).absolute()
    remove_leftovers_of(target)
    write_atomically(target, write)
    return header


# Settings of llm.c's forward pass, by transformers' key. Another value makes another model of the same weights.
_COMPUTED: dict[str, tuple[Json, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "tie_word_embeddings": (True,),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def header_of(model: torch.nn.Module, dtype: LlmcDtype, vocab_size: int | None = None) -> LlmcHeader:
    """Return the header of an llm.c file for ``model``. Raises InputError if llm.c has no such model."""
    config: Any = getattr(model, "config", None)
    if type(model).__name__ != "GPT2LMHeadModel":
        raise InputError(f"llm.c's model files support only GPT-2, and this is a {type(model).__name__}")
    for key, allowed in _COMPUTED.items():
        if (value := getattr(config, key)) not in allowed:
            raise InputError(f"llm.c computes {key} {literal(allowed[0])} only, and this model has {literal(value)}")
    if config.n_inner not in (None, 4 * config.n_embd):
        raise InputError(
            f"llm.c's feed-forward width is four times the width ({4 * config.n_embd}), and this model's is "
            f"{config.n_inner}"
        )
    size = config.vocab_size if vocab_size is None else vocab_size
    if not 1 <= size <= config.vocab_size:
        raise InputError(
            f"a vocabulary of {size:,}: this model has {config.vocab_size:,} token ids; allowed: up to that"
        )
    padded = -(-size // PADDED_TO) * PADDED_TO
    return LlmcHeader(dtype, config.n_positions, size, config.n_layer, config.n_head, config.n_embd, padded)


def as_folder(
    path: Path, out: Path, tokenizer: TokenizerInfo | None = None
) -> tuple[LlmcHeader, dict[str, torch.Tensor]]:
    """Convert an llm.c file to the folder ``out`` for transformers. Return header, weights. Raises InputError."""
    from safetensors.torch import save_file

    header, weights = read_model(path)
    target = expanded(out).absolute()
    if target.exists():
        raise InputError(f"{out}: already exists; choose a new folder (--out)")
    if tokenizer is not None and tokenizer.vocab_size > header.vocab_size:
        raise InputError(
            f"{path} has {header.vocab_size:,} token ids, fewer than the tokenizer ({tokenizer.vocab_size:,}); "
            "give its own (--tokenizer)"
        )

    def write(to: Path) -> None:
        save_file(weights, to / WEIGHTS, metadata={"format": "pt"})
        (to / CONFIG).write_text(json.dumps(header.config(), indent=1) + "\n")
        if tokenizer is not None:
            write_tokenizer(tokenizer, to)

    cache.create_folder(target, write)
    return header, weights


def build(path: Path) -> torch.nn.Module:
    """Return the model of an llm.c file, in single precision. Raises InputError if it cannot be read."""
    from transformers import GPT2Config, GPT2LMHeadModel

    header, weights = read_model(path)
    settings = {key: value for key, value in header.config().items() if key not in ("model_type", "dtype")}
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(**settings, use_cache=False))
    _fill(model, weights)
    # transformers cannot infer it from the class name, and would warn.
    model.loss_type = "ForCausalLM"  # type: ignore[assignment]
    return model


def load_seed(model: torch.nn.Module, path: Path) -> str:
    """Copy an llm.c file's weights into ``model``. Return a note of positions left out, or "". Raises InputError."""
    header, weights = read_model(path)
    try:
        model_header = header_of(model, header.dtype)
    except InputError as error:
        raise InputError(f"resume.llmc: {error}") from error
    for key in ("layers", "width", "heads", "vocab_size"):
        expected, actual = getattr(model_header, key), getattr(header, key)
        if expected != actual:
            raise InputError(
                f"model.{key}: {expected:,}, but {path} has {actual:,}; allowed with resume.llmc: {actual}"
            )
    if model_header.positions > header.positions:
        raise InputError(
            f"data.sequence_length: {model_header.positions:,}, but {path} has {header.positions:,} positions; "
            f"allowed: at most {header.positions}"
        )
    name = "transformer.wpe.weight"
    weights[name] = weights[name][: model_header.positions]
    _fill(model, weights)
    if model_header.positions == header.positions:
        return ""
    return f"{path}: its positions beyond {model_header.positions:,} of {header.positions:,} are left out"


def _fill(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    import torch

    parameters = dict(model.named_parameters())  # A tied weight appears once.
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


def not_finite(weights: dict[str, torch.Tensor]) -> int:
    """Return the number of single values, in all tensors, that are NaN or infinite."""
    return sum(weight.numel() - int(weight.isfinite().sum()) for weight in weights.values())
