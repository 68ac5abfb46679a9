#!/usr/bin/env bash
# Download Clotho and MMAU-Pro into AUDIOMARATHON_DATA (default: ./data). After an interruption, run it again.
#
#   scripts/download_datasets.sh                  Clotho's evaluation split, 2 GB, and MMAU-Pro, 47.5 GB
#   LIMIT=20 scripts/download_datasets.sh         only the samples of runs with SAMPLE_LIMIT=20
#   FROM=folder scripts/download_datasets.sh      from a folder or archive instead of the hub
#
# If the first fails, the second is still tried; the exit code is 1 if either fails.
set -euo pipefail

export AUDIOMARATHON_DATA="${AUDIOMARATHON_DATA:-data}"
failed=0
for task in lalm/clotho lalm/mmau_pro; do
    python -m audiomarathon data download "$task" --limit "${LIMIT:-0}" ${FROM:+--from "$FROM"} || failed=1
done
exit "$failed"
