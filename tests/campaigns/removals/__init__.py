"""Removals predicted by replay, against edited pipelines that are really run."""
