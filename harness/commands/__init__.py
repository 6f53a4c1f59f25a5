"""One file per command: ``add_arguments`` declares its arguments, and the function with the command's name runs it.

Nothing heavy is imported at the top of these files, since ``harness COMMAND --help`` imports them: what a command
needs (pydantic, numpy, torch), it imports when it runs.
"""
