"""The loop of plain.py in two threads at once."""

import runpy
import threading
from pathlib import Path

plain = str(Path(__file__).with_name("plain.py"))
threads = [threading.Thread(target=runpy.run_path, args=(plain,), kwargs={"run_name": "__main__"}) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
