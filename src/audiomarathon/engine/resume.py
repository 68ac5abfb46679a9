"""Report what a resumed run finds in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from audiomarathon.runs.folder import RunFolder
from audiomarathon.text import counted


def report_resume(folder: RunFolder, clips: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Print how many samples of a folder are done, which version wrote it, and which clips have changed.

    A folder of another version is named, not refused.

    Parameters
    ----------
    clips
        Current fingerprint of each sample's clips.
    """
    from audiomarathon.engine.environment import environment

    last, now = (_version(facts) for facts in (folder.run.get("environment"), environment()))
    if folder.records and last != now:
        say(f"{folder.path}: last written by audiomarathon {last}, now {now}")
    if folder.weak:
        say(
            f"{folder.path}: weak fingerprint: an earlier version made records here; its checkpoint matches by name, "
            "but weights or third-party code may have changed"
        )
    done = folder.done(clips) & set(clips)
    if done == set(clips):
        say(f"{folder.path}: complete; nothing to do")
    elif done:
        say(f"{folder.path}: resuming: {len(done):,} of {counted(len(clips), 'sample')} done")
    if beyond := len(folder.done() - set(clips)):
        say(f"{folder.path}: {counted(beyond, 'more recorded sample')} outside this run's limit, not in the summary")
    if changed := len((folder.done() & set(clips)) - done):
        say(f"{folder.path}: {counted(changed, 'sample')} with changed clips: running again")


def _version(facts: object) -> str:
    facts = facts if isinstance(facts, Mapping) else {}
    return f"{facts.get('audiomarathon')} ({str(facts.get('commit') or 'no commit')[:7]})"
