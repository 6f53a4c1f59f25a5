"""Removes near-duplicates from a corpus: shingles, MinHash, bands, exact verification, connected components."""
