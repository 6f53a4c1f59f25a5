"""Runs programs of this folder one after the other, each in a fork of one process that has imported torch.

Arguments: an output folder, then ``NAME ARGUMENT ...`` of each program as one word. ``NUMBER.txt`` gets what a program
prints, and its exit status in the last line. A word ``MODULE.FUNCTION!NAME ...`` first makes that function of the agent
raise an error.
"""

import os
import runpy
import sys
import traceback

import torch  # the agent comes with it
import torch._dynamo
import torch.utils.data

FOLDER = os.path.dirname(os.path.abspath(__file__))


def run(words, path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    fault, _, rest = words.rpartition("!")
    if fault:
        module, name = fault.split(".")
        inject(sys.modules[f"_harness_agent.{module}"], name)
    name, *arguments = rest.split()
    sys.argv = [f"{FOLDER}/{name}.py", *arguments]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    import atexit

    atexit._run_exitfuncs()
    os._exit(code)


def inject(module, name):
    def fails(*_given, **_named):
        raise OSError("injected")

    assert callable(getattr(module, name))
    setattr(module, name, fails)


torch.set_num_threads(1)
for number, words in enumerate(sys.argv[2:]):
    pid = os.fork()
    if pid == 0:
        run(words, f"{sys.argv[1]}/{number}.txt")
    _, status = os.waitpid(pid, 0)
    with open(f"{sys.argv[1]}/{number}.txt", "a") as file:
        file.write(f"ended {os.waitstatus_to_exitcode(status)} {pid}\n")
