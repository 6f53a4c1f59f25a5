"""The loop of plain.py, with its arguments, in another thread than the main one: as a notebook's or a server's job."""

import runpy
import threading
from pathlib import Path

plain = str(Path(__file__).with_name("plain.py"))
training = threading.Thread(target=runpy.run_path, args=(plain,), kwargs={"run_name": "__main__"})
training.start()
training.join()
