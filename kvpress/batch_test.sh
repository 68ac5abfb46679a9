#!/usr/bin/env bash
# Run all tasks at all ratios; write a log for each task, and a summary. For help: ./batch_test.sh -h
set -euo pipefail

folder="$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)"
exec "$folder/../scripts/batch_test.sh" "$(basename -- "$folder")" "$@"
