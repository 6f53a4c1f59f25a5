"""Measurements for a lent card, one module each with ``run(place)``; tests/gpu/lease/table.py lists them."""
