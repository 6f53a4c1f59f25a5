"""Campaigns of faults against the harness, as scripts: see README.md. pytest collects none of them."""
