"""Defines the ``model`` section: which model is trained, and how its layers compute."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trainer.config_base import Config
from trainer.json_types import Json
from trainer.user_code import named_function

PRESETS: dict[str, dict[str, object]] = {
    # family, layers, width, heads, kv_heads, feed-forward width, vocabulary. gpt2-small to gpt2-xl: Radford et al.
    # 2019, table 2, with the vocabulary of their code; distilbert: Sanh et al. 2019, as distilbert-base-uncased has it;
    # llama-1b / llama-8b: the shapes of Llama 3.2 1B (its embeddings untied here: 1.5 billion parameters for 1.24) and
    # Llama 3.1 8B (with the founding study's vocabulary).
    "gpt2-tiny": {"family": "gpt2", "layers": 4, "width": 128, "heads": 4, "kv_heads": 4, "ffn_width": 512},
    "gpt2-small": {"family": "gpt2", "layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "gpt2-medium": {"family": "gpt2", "layers": 24, "width": 1024, "heads": 16, "kv_heads": 16, "ffn_width": 4096},
    "gpt2-large": {"family": "gpt2", "layers": 36, "width": 1280, "heads": 20, "kv_heads": 20, "ffn_width": 5120},
    "gpt2-xl": {"family": "gpt2", "layers": 48, "width": 1600, "heads": 25, "kv_heads": 25, "ffn_width": 6400},
    "distilbert": {"family": "distilbert", "layers": 6, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "llama-tiny": {"family": "llama", "layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "ffn_width": 344},
    "llama-1b": {"family": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "ffn_width": 8192},
    "llama-8b": {"family": "llama", "layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn_width": 14336},
}
PRESET_VOCABULARY = {
    **dict.fromkeys(("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"), 50257),
    "distilbert": 30522,
    "llama-1b": 128256,
    "llama-8b": 131072,
}
Preset = Literal[
    "gpt2-tiny", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilbert",
    "llama-tiny", "llama-1b", "llama-8b",
]  # fmt: skip
DEFAULT_PRESET: Literal["gpt2-tiny"] = "gpt2-tiny"
DIMENSIONS = ("family", "layers", "width", "heads", "kv_heads", "ffn_width")
MUP_FAMILIES = ("gpt2", "llama")
Objective = Literal["causal", "masked"]


class MupConfig(Config):
    """Maximal update parametrization: the effect of training on activations does not depend on the width, so narrow and
    wide models share the best learning rate (Yang et al. 2022, "Tensor Programs V", table 8)."""

    base_width: int = Field(ge=1)
    """Width at which initial weights and learning rates are the usual ones. Use one value for all models that share a
    learning rate."""
    base_heads: int | None = Field(None, ge=1)
    """Attention heads at base_width; null: as many as the model has, so wider models have wider heads."""

    @model_validator(mode="after")
    def _whole_heads(self) -> MupConfig:
        if self.base_heads is not None and self.base_width % self.base_heads:
            raise ValueError(f"base_width: {self.base_width} is not a multiple of base_heads ({self.base_heads})")
        return self


def _model_config_tag(value: Any) -> str:
    return "[inline]" if isinstance(value, dict) else "[path]"


class ModelConfig(Config):
    """The model, by exactly one of: preset (a named shape; other keys may override its dimensions), config, pretrained,
    factory (a function of your own).
    """

    preset: Preset | None = DEFAULT_PRESET
    """Model whose dimensions the keys below override. Default: gpt2-tiny, if no other model is given."""
    family: Literal["gpt2", "llama", "distilbert"] | None = None
    layers: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    ffn_width: int | None = Field(None, ge=1)
    vocab_size: int | None = Field(None, ge=2)
    """Size of the embedding table. Default: that of the preset or config, else that of the tokenizer."""
    config: (
        Annotated[
            Annotated[str, Tag("[path]")] | Annotated[dict[str, Json], Tag("[inline]")],
            Discriminator(_model_config_tag),
        ]
        | None
    ) = None
    """A folder with a config.json, such a file, or its content ({model_type: qwen2, hidden_size: 64, ...}): any
    causal or masked language model of the transformers library, with random weights and its own dropout. Nothing is
    downloaded, and code in the folder is never run."""
    pretrained: str | None = None
    """A folder with a config.json and weights (*.safetensors), from which training starts."""
    factory: Annotated[str, AfterValidator(named_function)] | None = None
    """Your MODULE:FUNCTION, which returns a torch module. It may have parameters vocab_size, sequence_length and seed.
    The module is called with input_ids and labels, which it must shift itself as transformers' models do. It returns
    the loss, an object with .loss, or a tuple that begins with the loss. It also gets attention_mask if your own source
    pads before the text."""
    arguments: dict[str, Json] = Field({})
    """More arguments of the factory, by name."""
    objective: Objective | None = None
    """causal: each token is predicted from those before it. masked: 15 % of the tokens are predicted from all others:
    80 % of these are replaced by a mask token, 10 % by a random one and 10 % by themselves (Devlin et al. 2019).
    Default: what the model was made for; causal for a factory's."""
    attention: Literal["auto", "sdpa", "flash", "eager"] = "auto"
    """sdpa: torch's scaled_dot_product_attention, which picks a kernel. flash: only its flash kernel. eager: plain
    matrix products. auto: sdpa if the model has it, else eager."""
    compile: bool = False
    """Compile the model with torch.compile. The first steps compile, so set enough warmup_steps."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass, and recompute the layer there: a third more compute for a
    fraction of the memory (Chen et al. 2016)."""
    fused_gelu: bool | None = None
    """true: compute GPT-2's GELU (the tanh approximation) in one kernel of torch instead of transformers' eight.
    Rounding differs, so losses differ in their last digits."""
    mup: MupConfig | None = None
    """Initial weights and learning rates by maximal update parametrization, for a preset (gpt2 or llama); null: the
    usual ones. Checkpoints have the usual format."""

    @model_validator(mode="before")
    @classmethod
    def _without_the_default_preset(cls, given: Any) -> Any:
        """Set ``preset`` to None if ``config`` or ``pretrained`` is given without it.

        With ``factory`` the default preset stays, because recorded configurations have it.
        """
        if not isinstance(given, dict) or "preset" in given:
            return given
        of_files = any(given.get(key) is not None for key in ("config", "pretrained"))
        return {**given, "preset": None} if of_files else given

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelConfig:
        preset = None if self.factory is not None and self.preset == DEFAULT_PRESET else self.preset
        sources = {"preset": preset, "config": self.config, "pretrained": self.pretrained, "factory": self.factory}
        chosen = [key for key, value in sources.items() if value is not None]
        if len(chosen) != 1:
            listed = " and ".join(chosen) or "none"
            raise ValueError(f"{listed} given; give exactly one of preset, config, pretrained, factory (others: null)")
        if self.is_of_files:
            if keys := [key for key in DIMENSIONS if getattr(self, key) is not None]:
                raise ValueError(f"{chosen[0]} defines the model; {', '.join(keys)} are only for a preset")
            if self.pretrained is not None and self.vocab_size is not None:
                raise ValueError("pretrained weights have the vocabulary of their config.json; leave vocab_size out")
        return self

    @model_validator(mode="after")
    def _mup_has_a_known_shape(self) -> ModelConfig:
        if self.mup is None:
            return self
        if self.is_of_files or self.factory is not None:
            raise ValueError("mup: only for a preset, whose widths are known; allowed here: null")
        assert self.preset is not None
        family = self.family or PRESETS[self.preset]["family"]
        if family not in MUP_FAMILIES:
            raise ValueError(f"mup: not for the family {family}; allowed: {', '.join(MUP_FAMILIES)}, or mup null")
        return self

    @property
    def is_of_files(self) -> bool:
        """True if ``config`` or ``pretrained`` defines the model."""
        return self.config is not None or self.pretrained is not None
