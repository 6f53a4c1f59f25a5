"""Builds the JSON Schema of scenario files, with every dotted key spelled out, so that editors complete them."""

from __future__ import annotations

import json
from typing import Any

from harness.scenario.commands import CommandScenario
from harness.scenario.errors import dotted_keys
from harness.scenario.load import LOOP
from harness.scenario.model import NAME, Scenario
from harness.study.records import COMMAND
from trainer.config import TrainerConfig
from trainer.json_types import JsonObject

_Schema = dict[str, Any]  # a JSON Schema from pydantic


def schema_text() -> str:
    """Return the schema's text, as printed by ``harness schema`` and stored in scenarios/schema.json."""
    return json.dumps(scenario_schema(), indent=1) + "\n"


def scenario_schema() -> JsonObject:
    """Build the JSON Schema: ``base`` and arms take nested or dotted keys of TrainerConfig, ``matrix`` takes lists."""
    schema = Scenario.model_json_schema()
    trainer = TrainerConfig.model_json_schema()
    definitions: _Schema = {**schema.pop("$defs"), **trainer.pop("$defs")}
    keys = {key: _subschema(trainer, definitions, key) for key in dotted_keys(TrainerConfig)}
    definitions["Overrides"] = {
        "type": "object",
        "description": "Keys of the trainer's configuration, nested or dotted.",
        "additionalProperties": False,
        "properties": keys,
    }
    overrides = {"$ref": "#/$defs/Overrides"}
    properties = schema["properties"]
    properties["base"] = {**overrides, "description": properties["base"]["description"]}
    properties["arms"]["additionalProperties"] = {"anyOf": [overrides, {"type": "null"}]}
    properties["name"]["pattern"] = f"^{NAME.pattern}$"
    properties["arms"]["propertyNames"] = {"pattern": f"^{NAME.pattern}$"}
    properties["matrix"] |= {
        "additionalProperties": False,
        "properties": {key: {"type": "array", "minItems": 1, "items": value} for key, value in keys.items()},
    }
    # A file that extends another needs no key of its own.
    required = schema.pop("required")
    schema["anyOf"] = [{"required": required}, {"required": ["extends"]}]
    commands = CommandScenario.model_json_schema()
    for name, definition in commands.pop("$defs").items():
        definitions.setdefault(name, definition)
    commands["anyOf"] = [{"required": commands.pop("required")}, {"required": ["extends"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "if": {"anyOf": [{"required": [COMMAND]}, {"required": [LOOP]}]},
        "then": {"$ref": "#/$defs/CommandScenario"},
        "else": {"$ref": "#/$defs/Scenario"},
        "$defs": {**definitions, "Scenario": schema, "CommandScenario": commands},
    }


def _subschema(trainer: _Schema, definitions: _Schema, key: str) -> _Schema:
    """Return the schema of a dotted key, without title and default, because a section may be given partly."""
    current = trainer
    for part in key.split("."):
        reference = next(iter(_references(current)), None)
        if reference is not None:
            current = definitions[reference.rpartition("/")[2]]
        current = current["properties"][part]
    return {name: value for name, value in current.items() if name not in ("default", "title")}


def _references(schema: _Schema) -> list[str]:
    return [part["$ref"] for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())) if "$ref" in part]
