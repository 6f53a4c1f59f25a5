"""One file per command: ``add_arguments`` declares its arguments, and the function with the command's name runs it.

``harness COMMAND --help`` imports these files, so their top level imports nothing heavy. A command imports pydantic,
numpy or torch when it runs.
"""
