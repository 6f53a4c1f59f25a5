"""Removes near-duplicates from labelled corpora by both engines, and prints how well, how fast, in how much memory.

python -m tests.benchmarks.near_duplicates [--documents 1000 10000] [--engines local spark] [--master 'local[2]']

Each engine runs in a process of its own. Seconds are by the clock, from its start to its end, imports and Spark's start
included; processor seconds and peak memory (proportional set size: what processes share counts once) are those of all
of its processes together, read from /proc twice a second. "same" compares the engines' files, byte by byte. Where rensa
is installed (pip install rensa), its MinHash is timed beside this one on the same shingles: processor time, one thread.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from trainer.json_types import JsonObject

LIMIT_S = 3600.0
LOOK_S = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Taken:
    """What a command took, with all processes that it started."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def below(root: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    for one in found:
        found += parents.get(one, [])
    return found


def look(pid: int) -> tuple[int, float]:
    """Its memory in bytes and its processor seconds; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return memory, (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, StopIteration):
        return 0, 0.0


def take(words: list[str], environment: dict[str, str]) -> tuple[Taken, JsonObject]:
    """Run ``harness data dedup`` and watch it; its JSON."""
    begun_s = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "data", "dedup", "--json", *words], stdout=out, env=environment
        )
        peak, spent = 0, {}
        while process.poll() is None:
            if time.monotonic() - begun_s > LIMIT_S:
                process.kill()
                raise SystemExit(f"{' '.join(words)}: not done within {LIMIT_S:g} s")
            total = 0
            for pid in below(process.pid):
                memory, cpu_s = look(pid)
                total += memory
                spent[pid] = max(spent.get(pid, 0.0), cpu_s)
            peak = max(peak, total)
            time.sleep(LOOK_S)
        wall_s = time.monotonic() - begun_s
        out.seek(0)
        content = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    return Taken(wall_s, sum(spent.values()), peak), json.loads(content)


def same_files(one: Path, other: Path) -> bool:
    """Whether kept/ and removed/ of two results hold the same bytes."""
    for folder in ("kept", "removed"):
        names = [sorted(path.name for path in (root / folder).iterdir()) for root in (one, other)]
        if names[0] != names[1]:
            return False
        _, different, odd = filecmp.cmpfiles(one / folder, other / folder, names[0], shallow=False)
        if different or odd:
            return False
    return True


def time_signatures(count: int) -> None:
    """Processor time of shingles and signatures, and of rensa's signatures, of ``count`` labelled documents."""
    import numpy as np

    from trainer.data.corpus.dedup.labelled import labelled
    from trainer.data.corpus.dedup.shingles import Shingler, Shingling
    from trainer.data.corpus.dedup.sketches import MinHash, banding_for

    texts = [one.text for one in labelled(count, 1)]
    shingler, minhash = Shingler(Shingling()), MinHash(banding_for(0.8), 0)
    shingler.sets(texts)
    timed = {"shingles": [], "signatures": [], "rensa": []}
    for _ in range(5):
        begun_s = time.process_time()
        sets = shingler.sets(texts)
        shingled_s = time.process_time()
        minhash.signatures(sets)
        timed["shingles"].append(shingled_s - begun_s)
        timed["signatures"].append(time.process_time() - shingled_s)
        if find_spec("rensa") is not None:
            from rensa import RMinHash

            offsets = np.concatenate([[0], np.cumsum(sets.lengths)]).astype(np.uint64)
            begun_s = time.process_time()
            RMinHash.digest_matrix_from_flat_token_hashes(sets.hashes, offsets, 126, 0)
            timed["rensa"].append(time.process_time() - begun_s)
    each = {name: f"{1e9 * min(found) / len(sets.hashes):.0f} ns" for name, found in timed.items() if found}
    rensa = f"; rensa {version('rensa')}'s signatures {each['rensa']}" if "rensa" in each else "; rensa: not installed"
    print(f"processor time a shingle, least of 5: shingles {each['shingles']}, signatures {each['signatures']}{rensa}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--engines", nargs="+", default=["local", "spark"], choices=["local", "spark"])
    parser.add_argument("--master", default="local[2]", help="Spark's (default: %(default)s)")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; load of the last minute {os.getloadavg()[0]:.1f}", flush=True)
    time_signatures(300)
    head = "documents engine  precision  recall  pair prec. pair rec.   removed   wall s    cpu s  peak MB  same"
    print(head, flush=True)
    before: dict[str, tuple[int, Taken]] = {}
    growth = []
    with tempfile.TemporaryDirectory() as root:
        environment = os.environ | {"HARNESS_CACHE": f"{root}/cache"}
        for count in arguments.documents:
            folder = Path(root) / str(count)
            made = [sys.executable, "-m", "harness", "data", "dedup", "--make-labelled", str(count)]
            subprocess.run([*made, "--out", folder], check=True, capture_output=True, env=environment, timeout=LIMIT_S)
            inputs = ["--corpus", f"{folder}/corpus.parquet", "--labels", f"{folder}/labels.parquet"]
            for engine in arguments.engines:
                out = folder / engine
                options = ["--engine", "spark", "--master", arguments.master] if engine == "spark" else []
                taken, found = take([*inputs, "--out", str(out), *options], environment)
                quality, result = found["quality"], found["result"]
                first = folder / arguments.engines[0]
                same = "" if out == first else "yes" if same_files(first, out) else "NO"
                print(
                    f"{count:9,} {engine:6} {found['precision']:10.4f} {found['recall']:7.4f} "
                    f"{quality['pair_precision']:11.4f} {quality['pair_recall']:9.4f} {result['removed']:9,} "
                    f"{taken.wall_s:8.1f} {taken.cpu_s:8.1f} {taken.peak_bytes / 1e6:8.0f}  {same}",
                    flush=True,
                )
                if engine in before:
                    less, least = before[engine]
                    growth.append(
                        f"{engine}: {count / less:.0f} times the documents: {taken.wall_s / least.wall_s:.1f} times "
                        f"the seconds, {taken.cpu_s / least.cpu_s:.1f} times the processor time, "
                        f"{taken.peak_bytes / least.peak_bytes:.2f} times the memory"
                    )
                before[engine] = count, taken
    print("\n".join(growth))


if __name__ == "__main__":
    main()
