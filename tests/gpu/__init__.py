"""What needs a CUDA device, and the checks that are made there, which are tested everywhere."""
