"""Reads ``model.config`` and ``model.pretrained`` without torch; local files, and never their own code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from trainer.config import PRESETS, ModelConfig, Objective
from trainer.data import cache
from trainer.errors import InputError, literal, one_line
from trainer.files import expanded, read_json
from trainer.json_types import Json

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "config.json", "*.safetensors"
# Types that transformers builds only as a masked model, or as a causal one only if they are decoders:
# MODEL_FOR_MASKED_LM_MAPPING_NAMES of its modeling_auto (5.23). A test compares it with the installed version.
MASKED_ALONE = frozenset([
    "albert", "convbert", "deberta", "deberta-v2", "distilbert", "esm", "esmc", "eurobert", "flaubert", "fnet",
    "funnel", "gte", "ibert", "jina_embeddings_v3", "layoutlm", "longformer", "luke", "mobilebert", "modernbert",
    "modernvbert", "mpnet", "mra", "neomme", "nomic_bert", "nystromformer", "perceiver", "squeezebert", "tapas",
    "ultrabert", "ultravbert", "yoso",
])  # fmt: skip
MASKED_OR_DECODER = frozenset([
    "bart", "bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "mbart", "megatron-bert", "mvp",
    "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
])  # fmt: skip


@dataclass(frozen=True)
class ModelFiles:
    """A scenario's model files: the content of a config.json and, for a pretrained model, its weights."""

    key: str  # model.config or model.pretrained
    name: str  # name in the scenario
    content: Mapping[str, Json]
    folder: Path | None  # missing if the scenario itself has the content, or names a file
    weights: tuple[Path, ...]

    @property
    def model_type(self) -> str:
        return str(self.content["model_type"])

    @property
    def title(self) -> str:
        """Name of the model for errors: the scenario's key and its value."""
        return f"{self.key}: {self.name}"

    @property
    def fingerprint(self) -> str:
        """Digest of the configuration's content and of every file of weights. It changes with any of them."""
        return cache.fingerprint(self.content, [[path.name, cache.file_fingerprint(path)] for path in self.weights])


def model_files(config: ModelConfig) -> ModelFiles | None:
    """Return the files of the model, None for a preset or a factory. Raises InputError if they cannot be used."""
    if config.pretrained is not None:
        return pretrained_files(config.pretrained)
    if config.config is None:
        return None
    if isinstance(config.config, Mapping):
        content = _checked("model.config", "given in the scenario", config.config)
        name, folder = f"a {content['model_type']}", None
    else:
        name, place = config.config, expanded(config.config)
        folder = place.absolute() if place.is_dir() else None
        content = _read("model.config", name, place / CONFIG if folder is not None else place)
    if config.vocab_size is not None:
        content = {**content, "vocab_size": config.vocab_size}
    return ModelFiles("model.config", name, content, folder, ())


def pretrained_files(name: str, key: str = "model.pretrained") -> ModelFiles:
    """Return a folder's config and weight files. Raises InputError, naming ``key``, if either is missing."""
    folder = expanded(name)
    if not folder.is_dir():
        raise InputError(f"{key}: no folder {name}; give a local one with config.json and {WEIGHTS}")
    content = _read(key, name, folder / CONFIG)
    weights = tuple(sorted(path.absolute() for path in folder.glob(WEIGHTS)))
    if not weights:
        raise InputError(f"{key}: {name} holds no weights ({WEIGHTS}; other formats are not loaded)")
    return ModelFiles(key, name, content, folder.absolute(), weights)


def _read(key: str, name: str, path: Path) -> Mapping[str, Json]:
    if not path.is_file():
        raise InputError(f"{key}: no file {path}; give a folder with {CONFIG}, such a file, or its content")
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{key}: {name}: {path.name} is not readable JSON ({one_line(error)})") from error
    return _checked(key, name, content)


def _checked(key: str, name: str, content: object) -> Mapping[str, Json]:
    if not isinstance(content, Mapping) or not isinstance(content.get("model_type"), str):
        raise InputError(f"{key}: {name}: no model_type in it; give one that transformers knows, such as gpt2 or llama")
    if code := content.get("auto_map"):
        raise InputError(
            f"{key}: {name} names code of its own (auto_map: {shorten(literal(code), 120, placeholder=' ...')}), and "
            "code of a model's folder is never run; give a model that transformers itself has, or a model.factory"
        )
    return content


def objective_of(config: ModelConfig) -> Objective:
    """Return the objective of the scenario, else the model's own. Raises InputError if the model cannot have it."""
    if config.factory is not None:
        return config.objective or "causal"
    if (files := model_files(config)) is None:
        assert config.preset is not None
        family = str(config.family or PRESETS[config.preset]["family"])
        objective: Objective = "masked" if family in MASKED_ALONE else "causal"
        if config.objective not in (None, objective):
            raise InputError(
                f"model.objective: {config.objective}, but {family} is a {objective} model; allowed: {objective}"
            )
        return objective
    kind, requested = files.model_type, config.objective
    decoder = bool(files.content.get("is_decoder"))
    if requested == "causal" and (kind in MASKED_ALONE or (kind in MASKED_OR_DECODER and not decoder)):
        more = "" if kind in MASKED_ALONE else ", or is_decoder: true in its config"
        raise InputError(f"model.objective: causal, but {files.name} is a masked model ({kind}); allowed: masked{more}")
    if requested == "masked" and kind not in MASKED_ALONE | MASKED_OR_DECODER:
        raise InputError(f"model.objective: masked, but {files.name} is a causal model ({kind}); allowed: causal")
    if requested is not None:
        return requested
    return "masked" if kind in MASKED_ALONE or (kind in MASKED_OR_DECODER and not decoder) else "causal"


_MODELS_SHOWN = 3  # names of weights in an error
MOST_LAYERS = 10_000  # limit for counting one by one; a thousand were trained once (Wang et al. 2022, "DeepNet")
_UNLIMITED = 2**40  # positions of a model without a limit
# These models count positions from the padding's id: of their 514 positions, 512 are for tokens.
_PAST_PADDING = frozenset([
    "camembert", "data2vec-text", "esm", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
])  # fmt: skip


def build_from_files(files: ModelFiles, config: ModelConfig, attention: str | None = None) -> torch.nn.Module:
    """Build the model, with pretrained weights if any, on torch's device. Raises InputError if transformers cannot."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind: Any = AutoModelForMaskedLM if objective_of(config) == "masked" else AutoModelForCausalLM
    chosen = {} if attention is None else {"attn_implementation": attention}
    with _in_one_line(files):
        settings = _settings(files)
        if config.pretrained is None:
            # Single precision, not the config's dtype, which is that of saved weights (see _with_weights).
            model = kind.from_config(settings, trust_remote_code=False, dtype=torch.float32, **chosen)
        else:
            model = _with_weights(files, kind, settings, chosen)
    if getattr(model, "loss_type", None) is None:  # transformers cannot infer it from some class names and would warn
        model.loss_type = "ForMaskedLM" if kind is AutoModelForMaskedLM else "ForCausalLM"
    return model  # type: ignore[no-any-return]


def _settings(files: ModelFiles) -> Any:
    """Return transformers' configuration object of the model. Its cache of keys and values for generation is off."""
    from transformers import AutoConfig

    settings = AutoConfig.for_model(**dict(files.content))
    if hasattr(settings, "use_cache"):
        settings.use_cache = False  # Training drops the cache of keys and values.
    return settings


def _with_weights(files: ModelFiles, kind: Any, settings: Any, chosen: Mapping[str, str]) -> Any:
    import torch

    # Loaded in single precision, whatever the file's dtype is. TorchCompute converts them to the run's precision.
    model, report = kind.from_pretrained(
        str(files.folder),
        config=settings,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
        **chosen,
    )
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report.get("mismatched_keys", ()))
    if missing:
        shown = ", ".join(missing[:_MODELS_SHOWN]) + (", ..." if len(missing) > _MODELS_SHOWN else "")
        raise InputError(
            f"{files.title}: its files lack {len(missing)} weights of a {type(model).__name__} ({shown}); give a "
            "folder with all of them, or another model.objective"
        )
    return model


@contextmanager
def _in_one_line(files: ModelFiles) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about changes in the library's next version
            yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # transformers raises a dozen kinds of errors; the user needs one line.
        if "out of memory" in str(error).lower() or "can't allocate" in str(error):
            raise
        reason = shorten(one_line(error), 240, placeholder=" ...") or type(error).__name__
        raise InputError(f"{files.title}: transformers cannot build this model: {reason}") from error


def count(files: ModelFiles, config: ModelConfig) -> dict[str, int] | None:
    """Return the counts of a model without a formula, cached; None if a few dimensions do not tell its cost."""
    layers = _whole(files.content.get("num_hidden_layers")) or 0
    if layers > MOST_LAYERS:
        raise InputError(f"{files.title}: num_hidden_layers: {layers}; allowed: at most {MOST_LAYERS}")
    key = [version("transformers"), files.content, objective_of(config)]
    counts: dict[str, int] | None = cache.remember("model", key, lambda: _count(files, config))
    return counts


def _count(files: ModelFiles, config: ModelConfig) -> dict[str, int] | None:
    import torch

    with torch.device("meta"):  # Computes only shapes, without memory or time.
        model = build_from_files(files, config.model_copy(update={"pretrained": None, "config": dict(files.content)}))
    settings: Any = model.config
    names = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}
    names["vocab_size"] = "vocab_size"
    sizes = {name: size for name, attribute in names.items() if (size := _whole(getattr(settings, attribute, None)))}
    parameters = list(model.parameters())
    if len(sizes) < len(names) or any(parameter.dim() > 2 for parameter in parameters) or _is_mixed(settings):
        return None
    output = model.get_output_embeddings()  # type: ignore[operator]
    lookups = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding) and (output is None or module.weight is not output.weight)
    )
    heads, width = sizes["heads"], sizes["width"]
    return {
        **sizes,
        "kv_heads": _whole(getattr(settings, "num_key_value_heads", None)) or heads,
        "ffn_width": _whole(getattr(settings, "intermediate_size", None)) or 4 * width,
        "head_width": _whole(getattr(settings, "head_dim", None)) or width // heads,
        "positions": positions_of(settings),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "lookups": lookups,
    }


def _is_mixed(settings: Any) -> bool:
    """Return True if a token uses only some weights (experts), or some of them twice (an encoder with a decoder)."""
    experts = [value for key, value in settings.to_dict().items() if "expert" in key and _whole(value)]
    shared = getattr(settings, "num_hidden_groups", None) is not None  # albert uses one layer's weights many times
    return any(number > 1 for number in experts) or shared or bool(getattr(settings, "is_encoder_decoder", False))


def positions_of(settings: Any) -> int:
    """Return the longest sequence of a model with these settings; a huge number if they set no limit."""
    positions = _whole(getattr(settings, "max_position_embeddings", None)) or _UNLIMITED
    return positions - (settings.pad_token_id or 0) - 1 if settings.model_type in _PAST_PADDING else positions


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
