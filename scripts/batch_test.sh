#!/usr/bin/env bash
# Every folder's batch_test.sh calls this: scripts/batch_test.sh FOLDER [options] [TASK ...]
# The work is in src/audiomarathon/cli/batch.py; PYTHON names another interpreter.
set -euo pipefail

# -P: never import modules from the current folder.
python="${PYTHON:-python3}"
if ! reason="$("$python" -P -c 'import audiomarathon' 2>&1)"; then
    last="${reason##*$'\n'}"
    echo "error: $python cannot import audiomarathon${last:+ ($last)}: activate its environment, or pip install -e . at the" \
        "repository's root" >&2
    exit 2
fi
exec "$python" -P -m audiomarathon.cli.batch "$@"
