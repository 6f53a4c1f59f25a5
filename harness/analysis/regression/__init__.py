"""Is it slower than it was? Decisions about two sides, from rounds that alternated or from two studies."""
