"""datatrove: LocalPipelineExecutor(ParquetReader, DocumentTokenizer), a task for each file (its README's tokenization).

Documents stay in their order: shuffling them, the default, would be more work than the others do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import Clock, job, report
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    given, clock = job(), Clock()
    with clock.work():
        LocalPipelineExecutor(
            pipeline=[
                ParquetReader(str(Path(given.texts[0]).parent), glob_pattern="*.parquet", text_key="text"),
                DocumentTokenizer(
                    output_folder=f"{given.out}/tokens",
                    tokenizer_name_or_path=given.tokenizer,
                    eos_token=given.eos,
                    shuffle_documents=False,
                ),
            ],
            tasks=len(given.texts),
            workers=given.processes,
            logging_dir=f"{given.out}/logs",
        ).run()
    report(clock, (np.fromfile(file, np.uint16) for file in sorted(Path(given.out, "tokens").glob("*.ds"))))


if __name__ == "__main__":
    main()
