#!/usr/bin/env bash
# All tasks at all ratios, a log a task and a summary: ./batch_test.sh -h explains.
set -euo pipefail

folder="$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)"
exec "$folder/../scripts/batch_test.sh" "$(basename -- "$folder")" "$@"
