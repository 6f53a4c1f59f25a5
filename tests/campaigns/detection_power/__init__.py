"""How often a real slowdown is found, and how often none is called one: trials on this machine."""
