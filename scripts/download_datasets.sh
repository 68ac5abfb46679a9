#!/usr/bin/env bash
# Bring Clotho and MMAU-Pro into AUDIOMARATHON_DATA (default: ./data). Goes on where it was interrupted.
#
#   scripts/download_datasets.sh                  Clotho's evaluation split, 2 GB, and MMAU-Pro, 47.5 GB
#   LIMIT=20 scripts/download_datasets.sh         only the samples of runs with SAMPLE_LIMIT=20
#   FROM=folder scripts/download_datasets.sh      from a folder or archive instead of the hub
#
# The second is tried where the first fails; the exit code is 1 if either does.
set -euo pipefail

export AUDIOMARATHON_DATA="${AUDIOMARATHON_DATA:-data}"
failed=0
for task in lalm/clotho lalm/mmau_pro; do
    python -m audiomarathon data download "$task" --limit "${LIMIT:-0}" ${FROM:+--from "$FROM"} || failed=1
done
exit "$failed"
