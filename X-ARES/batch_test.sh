#!/usr/bin/env bash
# Every encoder on every task, one table at the end. Options go to xares.run. The same command continues after a stop.
#   ENCODERS="my_encoder.py hf:openai/whisper-base" TASKS="esc50 gtzan_genre" ./batch_test.sh --max-jobs 4
# ENCODERS default to the four baselines, TASKS to src/tasks/*.py, RESULTS_DIR to results; data lies in env/ or
# $XARES_ENV_ROOT. Exit code: 0 all well, 1 a task or an encoder failed.
set -uo pipefail

folder="$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)"
python="${PYTHON:-python3}" results="${RESULTS_DIR:-results}" code=0
export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
read -ra encoders <<<"${ENCODERS:-$(printf '%s ' "$folder"/example/*/*_encoder.py)}"
read -ra tasks <<<"${TASKS:-$(printf '%s ' "$folder"/src/tasks/*_task.py)}"
for encoder in "${encoders[@]}"; do
    echo "== $encoder"
    "$python" -P -m xares.run --results "$results" "$@" "$encoder" "${tasks[@]}" || { code=$?; }
    ((code == 130)) && exit 130 # Ctrl-C
done
"$python" -P -m audiomarathon encoder table "$results" || code=1
exit $((code != 0))
