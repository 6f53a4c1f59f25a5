"""Near-duplicates of a corpus: shingles, MinHash, bands, exact verification, components; what is kept and removed."""
