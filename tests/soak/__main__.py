"""Attack the kit for hours: kills, full disks, flipped bits, odd documents. Records go on where they were stopped.

    python -m tests.soak --list
    python -m tests.soak                                   # every part, some hours on two cores
    python -m tests.soak "killed trainings" --count 20     # one part, and so many cases
    python -m tests.soak --report                          # benchmarks/results/reliability.{json,md} of what is there

A case is drawn by its number: the same case does the same anywhere, but for the moment of a kill.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})

from docsplit.runtime.files import ROOT, write_text
from tests.soak import damage, disks, documents, indexes, trainings
from tests.soak.engine import Part, run_part, summary, table

RESULTS = ROOT / "benchmarks" / "results" / "reliability.json"
PARTS = {
    "fuzzed documents": Part("read, counted, or one line that names the file", documents.fuzzed_files, 10_000),
    "damaged checkpoints": Part("passed over, and refused in one line", damage.damaged_checkpoints, 1500),
    "damaged indexes": Part("one line that names the file, or the same answers", damage.damaged_indexes, 1000),
    "killed index verbs": Part("the old index or the new one is left", indexes.killed_verbs, 100),
    "failing disks": Part("one line; the next run ends as if nothing had happened", disks.faulty_disks, 2000),
    "killed trainings": Part(
        "the same command ends with the same parameters, bit for bit", trainings.killed_trainings, 200
    ),
}


def main() -> None:
    """Run the parts that are asked for, and say what held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--count", type=int, help="cases of each part (default: as many as --list says)")
    parser.add_argument("--records", type=Path, default=Path("outputs/soak"), help="where cases are noted")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--report", action="store_true", help="write what is on record to benchmarks/results")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)!r}: choose from {', '.join(PARTS)}")
    if options.list:
        for name, part in PARTS.items():
            print(f"{name} ({part.count}): {part.promise}")
        return
    names = options.parts or list(PARTS)
    if not options.report:
        for name in names:
            run_part(name, PARTS[name], options.count or PARTS[name].count, options.records)
    summaries = [summary(name, PARTS[name], options.records) for name in names]
    summaries = [row for row in summaries if row["cases"]]
    if options.report:
        write_text(RESULTS, json.dumps(summaries, indent=1) + "\n")
        write_text(RESULTS.with_suffix(".md"), table(summaries))
    print(table(summaries))
    broken = [f"{row['part']}: {case['case']}: {case['outcome']}" for row in summaries for case in row["broken"]]
    sys.exit("\n".join(broken) if broken else 0)


if __name__ == "__main__":
    main()
