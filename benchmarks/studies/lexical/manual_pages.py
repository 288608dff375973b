"""Make labelled documents of manual pages: German ones, say, of Debian's manpages-de and manpages-de-dev.

    apt-get download manpages-de manpages-de-dev; for file in *.deb; do dpkg -x $file pages; done
    python -m benchmarks.studies.lexical.manual_pages pages/usr/share/man/de outputs/german

The label is the section of the manual. A third of the pages, by a hash of the name, is to test on.
"""

import gzip
import hashlib
import json
import re
import sys
from pathlib import Path

MARKS = re.compile(r"\\f(\[\w*\]|\(\w\w|\w)|\\[&|^%]|\\s[-+]?\d|\\\*\(\w\w")  # fonts, sizes and joints of groff


def text_of(page: str) -> str:
    """Return a page's text without requests, comments and the line that names its section."""
    lines = [line for line in page.splitlines() if not re.match(r"[.']\s*(\\\"|TH|Dd|Dt|so|ie|el|de|ds|if|nr)", line)]
    lines = [re.sub(r"^[.']\s*\w*\s*", "", line) for line in lines]
    return re.sub(r"\\(.)", r"\1", MARKS.sub("", "\n".join(lines))).replace('"', "")


def main() -> None:
    """Write train.jsonl and test.jsonl; sections with fewer than 30 pages are left out."""
    source, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    rows = dict[str, list[str]](train=[], test=[])
    for section in sorted(source.glob("man?")):
        paths = [path for path in sorted(section.glob("*.gz")) if not path.is_symlink()]
        for path in paths if len(paths) >= 30 else []:
            part = "test" if hashlib.blake2b(path.name.encode()).digest()[0] % 3 == 0 else "train"
            text = text_of(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
            if len(text.split()) >= 50:
                rows[part].append(json.dumps({"text": text, "label": section.name}, ensure_ascii=False) + "\n")
    for part, lines in rows.items():
        (target / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{part}: {len(lines):,} pages")


if __name__ == "__main__":
    main()
