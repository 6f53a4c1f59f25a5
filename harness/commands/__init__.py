"""One file a command: ``add_arguments`` says what it takes, the function named as the command runs it.

Nothing heavy is imported at the top of these files, since ``harness COMMAND --help`` imports them: what a command
needs (pydantic, numpy, torch), it imports when it runs.
"""
