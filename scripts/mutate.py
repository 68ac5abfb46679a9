"""Plant known faults in the sources, one at a time, and see whether the tests of `make test` notice each.

    python scripts/mutate.py                     all faults of faults.toml, some 15 minutes
    python scripts/mutate.py --only knn-ties     one of them; several as a,b
    python scripts/mutate.py --list              their names, and the files they are planted in
    python scripts/mutate.py --all --jobs 4      run the whole suite on each, not only the tests that are named

A fault is a table of faults.toml: its `name`, the `file` under src/audiomarathon/, the text that is `old` there
(exactly once) and `new`, and the `tests` that should fail. All runs in a copy in a temporary folder: nothing changes
here. First the named tests run on sound sources: a fault is only caught by tests that pass without it.

Prints `caught` or `SURVIVED` for each fault; the exit code is 1 when one survives, 2 when the table is wrong.
A survivor is a bug that a change could bring in unnoticed: add the smallest test that kills it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "src/audiomarathon"
_FAILED = 1  # pytest's exit code where tests failed; 0: all passed; all else: it could not run


@dataclass(frozen=True)
class Fault:
    """A bug to plant; the attributes are those of faults.toml."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, root: Path) -> str:
        """Return the file's text with the fault in it, or raise ValueError where the old text is not there once."""
        text = (root / SOURCES / self.file).read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds {self.old!r} {found} times, must be once")
        return text.replace(self.old, self.new)


def read_faults(file: Path = Path(__file__).with_name("faults.toml")) -> list[Fault]:
    """Read the table of faults."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(f"tests/test_{name}.py" for name in row["tests"])}) for row in rows]


def run_tests(root: Path, tests: tuple[str, ...], jobs: int) -> subprocess.CompletedProcess[str]:
    """Run tests on the sources under `root` until the first failure, selected as `make test` selects them."""
    left = {name: value for name, value in os.environ.items() if name != "AUDIOMARATHON_TESTS"}
    workers = ("-n", str(jobs)) if jobs > 1 else ("-p", "no:xdist")
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *workers, *tests)
    env = {**left, "PYTHONPATH": str(root / "src")}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def copied(target: Path) -> Path:
    """Copy what git knows or would add, links as links."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAMES", help="plant these faults alone")
    parser.add_argument("--all", action="store_true", help="run the whole suite of `make test` on each fault")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="workers of pytest (default 1)")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    given = parser.parse_args()
    faults = read_faults()
    names = given.only.split(",") if given.only else [fault.name for fault in faults]
    if unknown := {*names} - {fault.name for fault in faults}:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}; --list names them")
    faults = [fault for fault in faults if fault.name in names]
    if given.list:
        print("\n".join(f"{fault.name:32} {fault.file}" for fault in faults))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        root = copied(Path(folder))
        try:
            planted = [fault.planted(root) for fault in faults]
        except (OSError, ValueError) as error:
            parser.error(str(error))
        sound = () if given.all else tuple(sorted({test for fault in faults for test in fault.tests}))
        if (done := run_tests(root, sound, given.jobs)).returncode:
            parser.error(f"tests fail without any fault:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        survivors = 0
        for fault, text in zip(faults, planted, strict=True):
            file, begin = root / SOURCES / fault.file, time.monotonic()
            before = file.read_bytes()
            file.write_text(text, encoding="utf-8")
            done = run_tests(root, () if given.all else fault.tests, given.jobs)
            file.write_bytes(before)
            if done.returncode not in (0, _FAILED):
                parser.error(f"{fault.name}: the tests cannot run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            survivors += not done.returncode
            said = "caught" if done.returncode else "SURVIVED"
            by = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")), "")
            print(f"{said:9} {fault.name:32} {time.monotonic() - begin:5.1f} s  {by}", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} faults caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
