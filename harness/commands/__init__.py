"""One file per command: ``add_arguments`` declares its arguments, and the function with the command's name runs it.

``harness COMMAND --help`` imports these files, so pydantic, numpy and torch are imported only when a command runs.
"""
