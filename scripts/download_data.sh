#!/usr/bin/env bash
# Download tasks' data into AUDIOMARATHON_DATA (default: ./data) and verify it. After an interruption, run it again.
#
#   scripts/download_data.sh vesus                  the smallest task, under 1 GB
#   scripts/download_data.sh all                    all ten, 59 GB
#   LIMIT=20 scripts/download_data.sh tau gtzan     only the samples of runs with SAMPLE_LIMIT=20
#   FROM=copy.zip scripts/download_data.sh vesus    from a folder or archive instead of the hub
set -euo pipefail

if [ $# -eq 0 ]; then
    sed -n 's/^# \{0,1\}//; 2,7p' "$0"
    exit 2
fi
export AUDIOMARATHON_DATA="${AUDIOMARATHON_DATA:-data}"
python -m audiomarathon data download "$@" --limit "${LIMIT:-0}" ${FROM:+--from "$FROM"}
python -m audiomarathon data verify "$@"
