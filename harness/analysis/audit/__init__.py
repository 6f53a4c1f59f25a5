"""A published results table against itself and against its declared model: tables in, dataclasses out."""
