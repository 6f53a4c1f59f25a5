"""Measures LLM training: where the time of each step goes, and what a change buys.

Six functions are the way in. A notebook shows the first screen of a study that the first two return.

    study = harness.run("quickstart")              run a scenario into a new study (harness run)
    study = harness.load("results/quickstart")     open a study, here the newest (harness report)
        study.verdicts, study.ledger, study.table("steps")

    with harness.record() as recording: ...        record the training in this block (harness exec)
        harness.step()                             begin a step, where none is found
        with harness.span("tokenize"): ...         time a phase of a step, or a stage of a batch
    study = harness.load(recording.study)

    for batch in harness.headspace(loader): ...    how much faster the loop would be with free data, while it trains

Callbacks record a training of a framework, where that is installed: HarnessCallback (transformers), LightningCallback
and AccelerateTracker. InputError has one line that says what is wrong and what is allowed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.attach.for_accelerate import AccelerateTracker
    from harness.attach.for_lightning import LightningCallback
    from harness.attach.for_transformers import HarnessCallback
    from harness.attach.headspace import headspace
    from harness.attach.hooks import record, span, step
    from harness.commands.api import LoadedStudy, load, run
    from trainer.errors import InputError

__all__ = [
    "AccelerateTracker",
    "HarnessCallback",
    "InputError",
    "LightningCallback",
    "LoadedStudy",
    "__version__",
    "headspace",
    "load",
    "record",
    "run",
    "span",
    "step",
]
__version__ = "0.1.0"
# Public names and their modules. Each module is imported on first use, because the command line needs none of them.
_PLACES = {
    "record": "harness.attach.hooks",
    "span": "harness.attach.hooks",
    "headspace": "harness.attach.headspace",
    "step": "harness.attach.hooks",
    "HarnessCallback": "harness.attach.for_transformers",
    "LightningCallback": "harness.attach.for_lightning",
    "AccelerateTracker": "harness.attach.for_accelerate",
    "load": "harness.commands.api",
    "run": "harness.commands.api",
    "LoadedStudy": "harness.commands.api",
    "InputError": "trainer.errors",
}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        from importlib import import_module

        found: object = getattr(import_module(_PLACES[name]), name)
        return found
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names for ``dir()``, without the framework callbacks.

    help() loads every name, and each callback loads a framework.
    """
    return sorted(name for name in __all__ if not _PLACES.get(name, "").startswith("harness.attach.for_"))
