"""For every test."""

import signal

from hypothesis import settings

# On a shared machine a single example may take long for reasons of its own.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# A shell starts what it runs in the background with SIGINT ignored, which processes started from here would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
