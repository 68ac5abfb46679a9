"""Plant known faults in the sources, one at a time, and see whether the tests of `make test` notice each.

    python scripts/mutate.py                     all faults of faults.toml, some minutes
    python scripts/mutate.py --only knn-ties     one of them; several as a,b
    python scripts/mutate.py --list              their names, and the files they are planted in
    python scripts/mutate.py --all --jobs 4      run the whole suite on each, not only the tests that are named

A fault is a table of faults.toml: its `name`, the `file` under src/audiomarathon/, the text that is `old` there
(exactly once) and `new`, and the `tests` that should fail. Everything runs in copies in a temporary folder, so this
folder stays as it is. First the tests run without any fault: only tests that pass then can catch a fault.

Prints `caught` or `SURVIVED` for each fault; the exit code is 1 when one survives, 2 when the table is wrong.
A survivor is a bug that a change could bring in unnoticed: add the smallest test that kills it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "src/audiomarathon"
_FAILED = 1  # pytest's exit code if tests failed; 0 means all passed, any other code that it could not run


@dataclass(frozen=True)
class Fault:
    """A bug to plant; the attributes are the fields of faults.toml."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, root: Path) -> str:
        """Return the file's text with the fault in it; raise ValueError unless `old` occurs exactly once."""
        text = (root / SOURCES / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds {self.old!r} {count} times; allowed: exactly once")
        return text.replace(self.old, self.new)


def read_faults(file: Path = Path(__file__).with_name("faults.toml")) -> list[Fault]:
    """Read the faults in faults.toml."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(f"tests/test_{name}.py" for name in row["tests"])}) for row in rows]


def copied(target: Path) -> Path:
    """Copy the files that git tracks or would add into the folder `target`, links as links; return `target`."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def started(root: Path, tests: tuple[str, ...]) -> int:
    """Run tests on the sources under `root` in a forked process, until one fails; return the process id.

    The same tests are selected as in `make test`. Their output goes to `root/said`, the names of imported modules to
    `root/modules`.
    """
    if child := os.fork():
        return child
    os.environ["PYTHONPATH"] = f"{root}/src"
    os.environ.pop("AUDIOMARATHON_TESTS", None)
    os.chdir(root)
    sys.path[:0] = [f"{root}/src"]
    sys.argv = ["pytest"]
    code = 4
    try:
        with (root / "said").open("w", buffering=1) as said, redirect_stdout(said), redirect_stderr(said):
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
            (root / "modules").write_text("\n".join(_libraries(root)))
    finally:
        os._exit(code)


def _libraries(root: Path) -> list[str]:
    files = {name: str(getattr(module, "__file__", None) or root) for name, module in sys.modules.items()}
    return [name for name, file in files.items() if not file.startswith(str(root)) and name != "__mp_main__"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAMES", help="plant only these faults (names joined by commas)")
    parser.add_argument("--all", action="store_true", help="run the whole suite of `make test` on each fault")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time (default 1)")
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
        roots = [copied(Path(folder, str(number))) for number in range(max(1, given.jobs))]
        try:
            planted = {fault: fault.planted(roots[0]) for fault in faults}
        except (OSError, ValueError) as error:
            parser.error(str(error))
        sound = () if given.all else tuple(sorted({test for fault in faults for test in fault.tests}))
        if os.waitstatus_to_exitcode(os.waitpid(started(roots[0], sound), 0)[1]):
            parser.error(f"tests fail without any fault:\n{(roots[0] / 'said').read_text()[-4000:]}")
        for name in (roots[0] / "modules").read_text().splitlines():
            with suppress(Exception):  # import once, not in every fork: importing torch takes longer than most tests
                importlib.import_module(name)
        survivors = plant(planted, roots, whole=given.all)
    print(f"{len(faults) - survivors} of {len(faults)} faults caught")
    return 1 if survivors else 0


def plant(planted: dict[Fault, str], roots: list[Path], *, whole: bool) -> int:
    """Plant each fault in a copy of the tree, run its tests, print the result; return how many faults were missed."""
    left, free, survivors = list(planted), list(roots), 0
    running: dict[int, tuple[Fault, Path, float]] = {}
    while left or running:
        while left and free:
            fault, root = left.pop(0), free.pop()
            (root / SOURCES / fault.file).write_text(planted[fault], encoding="utf-8")
            running[started(root, () if whole else fault.tests)] = fault, root, time.monotonic()
        child, status = os.wait()
        fault, root, begin = running.pop(child)
        shutil.copy2(ROOT / SOURCES / fault.file, root / SOURCES / fault.file)
        free.append(root)
        code, said = os.waitstatus_to_exitcode(status), (root / "said").read_text()
        if code not in (0, _FAILED):
            sys.exit(f"{fault.name}: the tests cannot run:\n{said[-4000:]}")
        by = next((line.split()[1] for line in said.splitlines() if line.startswith("FAILED")), "")
        print(
            f"{'caught' if code else 'SURVIVED':9} {fault.name:32} {time.monotonic() - begin:5.1f} s  {by}", flush=True
        )
        survivors += not code
    return survivors


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
