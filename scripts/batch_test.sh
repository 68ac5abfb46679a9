#!/usr/bin/env bash
# What every folder's batch_test.sh opens: scripts/batch_test.sh FOLDER [options] [TASK ...]
# The work is in src/audiomarathon/cli/batch.py; PYTHON names another interpreter.
set -euo pipefail

# -P: nothing in the folder that a user stands in can pass for a module.
python="${PYTHON:-python3}"
if ! reason="$("$python" -P -c 'import audiomarathon' 2>&1)"; then
    last="${reason##*$'\n'}"
    echo "error: $python cannot import audiomarathon${last:+ ($last)}: activate its environment, or pip install -e . at the" \
        "repository's root" >&2
    exit 2
fi
exec "$python" -P -m audiomarathon.cli.batch "$@"
