"""For every test: on a shared machine a single example may take long for reasons of its own."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
