"""Programs that write a folder of text as tokens, each as the documentation of its library says (pretokenize_peers)."""
