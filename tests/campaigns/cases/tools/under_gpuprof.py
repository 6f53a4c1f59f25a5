"""``under_gpuprof.py PROGRAM ...``: run a program inside ``gpuprof.profile``, which instruments it by itself."""

import runpy
import sys

import gpuprof

sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
with gpuprof.profile("case"):
    runpy.run_path(sys.argv[0], run_name="__main__")
