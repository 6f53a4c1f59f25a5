"""Injected costs in programs that know nothing of the harness: are they found in their stage? Run by hand."""
