"""The one exception the trainer raises for input that a user can mend."""


class InputError(ValueError):
    """Bad input: one line that names the file or dotted key, what is wrong and what is allowed.

    The command line prints it as it is, without a traceback, and exits with status 2.
    """
