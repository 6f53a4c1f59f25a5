"""Reads the files of ``model.config`` and ``model.pretrained``, without torch: dimensions, objective and fingerprint.

Only local files are read. A folder's own code (``auto_map``) is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from trainer.config import PRESETS, ModelConfig, Objective
from trainer.data import cache
from trainer.errors import InputError, literal, one_line
from trainer.files import expanded, read_json
from trainer.json_types import Json

CONFIG, WEIGHTS = "config.json", "*.safetensors"
# Types that transformers builds only as a masked model, or as a causal one only if they are decoders:
# MODEL_FOR_MASKED_LM_MAPPING_NAMES of its modeling_auto (5.23). A test compares it with the installed version.
MASKED_ALONE = frozenset(
    [
        "albert",
        "convbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "esm",
        "esmc",
        "eurobert",
        "flaubert",
        "fnet",
        "funnel",
        "gte",
        "ibert",
        "jina_embeddings_v3",
        "layoutlm",
        "longformer",
        "luke",
        "mobilebert",
        "modernbert",
        "modernvbert",
        "mpnet",
        "mra",
        "neomme",
        "nomic_bert",
        "nystromformer",
        "perceiver",
        "squeezebert",
        "tapas",
        "ultrabert",
        "ultravbert",
        "yoso",
    ]
)
MASKED_OR_DECODER = frozenset(
    [
        "bart",
        "bert",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "mbart",
        "megatron-bert",
        "mvp",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)


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
    """Return the files of the folder ``name``, with weights. Raises InputError, naming ``key``, if unusable."""
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


def preset_family(config: ModelConfig) -> str:
    """Return the family of a preset's model, such as gpt2: the configured one, else the preset's own."""
    assert config.preset is not None
    return str(config.family or PRESETS[config.preset]["family"])


def objective_of(config: ModelConfig) -> Objective:
    """Return the objective of the scenario, else the model's own. Raises InputError if the model cannot have it."""
    if config.factory is not None:
        return config.objective or "causal"
    if (files := model_files(config)) is None:
        family = preset_family(config)
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
