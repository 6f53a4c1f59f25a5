"""Makes every rename of a Python process take a while, before and after, as on a slow or distant disk."""

import os
import time

RENAME_S = 0.25  # in all


def _slow(rename):  # type: ignore[no-untyped-def]
    def slow(*places, **settings):  # type: ignore[no-untyped-def]
        time.sleep(RENAME_S / 2)
        try:
            return rename(*places, **settings)
        finally:
            time.sleep(RENAME_S / 2)

    return slow


os.rename, os.replace = _slow(os.rename), _slow(os.replace)
