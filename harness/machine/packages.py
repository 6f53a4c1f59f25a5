"""List the packages in records, and look up their versions without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OWN_PACKAGE = "llm-training-harness"
PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "pyarrow", "numpy", OWN_PACKAGE)


def package_version(package: str) -> str | None:
    """Return the installed version; None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
