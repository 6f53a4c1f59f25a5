"""Finds which data configurations a command of ``harness data`` is about: those of a scenario's arms."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from harness.commands.arguments import load_plan
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import DataConfig


def distinct_needs(arguments: argparse.Namespace, *keys: str) -> list[DataConfig]:
    """The data configurations of the selected arms that differ in ``keys``; InputError where one has no data path."""
    needs: dict[str, DataConfig] = {}
    for arm in load_plan(arguments).arms:
        data = arm.config.data
        if data.source is not None:
            raise InputError(
                f"arm {arm.name}: data.source: {data.source} makes its batches by itself, without a corpus, a "
                f"tokenizer or pretokenized files: there is nothing to {arguments.action}; select other arms with --arm"
            )
        needs.setdefault(json.dumps(data.model_dump(include=set(keys)), sort_keys=True), data)
    return list(needs.values())
