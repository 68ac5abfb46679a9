#!/usr/bin/env bash
# The first hour on a GPU: test this machine, these weights and this version, and pack the results into one archive.
#
#     scripts/first_gpu_hour.sh [MODEL] [--data DIR] [--task TASK] [--out DIR] [--address HOST:PORT] [--dry-run]
#
# MODEL is one of `audiomarathon list models` [qwen2.5-omni-7b]; DIR holds the tasks' data [AUDIOMARATHON_DATA, or else
# the mini benchmark]. Steps: doctor, certify, benchmark_efficiency.py, a sweep of one task, and one run by two workers
# and by none. Finished steps are skipped; after an interruption give the same command again.
# --dry-run, and every call without a GPU, runs all steps on the CPU: the embedded model, the mini benchmark, few samples.
# Env: those of `audiomarathon run` (MODEL_PATH, DTYPE, SAMPLE_LIMIT …), RAY_ADDRESS for --address, PYTHON, and
# EFFICIENCY_SIZE: a --config of benchmark_efficiency.py [the largest that fits on the GPU].
# Exit code: 0 all done, 1 a step failed (the archive is still made), 2 wrong command, 130 interrupted.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
am=("$python" -P -m audiomarathon) # -P: never import modules from the current folder

die() { # MESSAGE
    echo "error: $1" >&2
    exit 2
}

asked="" data="${AUDIOMARATHON_DATA:-mini}" task="tau" out="" address="${RAY_ADDRESS:-}" dry=""
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        --dry-run) dry="asked for"; shift ;;
        --data | --task | --out | --address)
            [ -n "${2:-}" ] || die "$1: a value is missing"
            printf -v "${1#--}" %s "$2"; shift 2 ;;
        -*) die "no such option: $1; allowed: --data, --task, --out, --address, --dry-run, --help" ;;
        *) [ -z "$asked" ] || die "two models, $asked and $1; allowed: one a call"
            asked="$1"; shift ;;
    esac
done
[ "$data" = mini ] || [ -d "$data" ] || die "--data $data: no such folder; allowed: the tasks' data root, or mini"

if ! facts="$("$python" "$here/first_gpu_hour.py" machine 2>/dev/null)"; then
    reason="$("$python" "$here/first_gpu_hour.py" machine 2>&1 || true)"
    die "$python cannot run audiomarathon (${reason##*$'\n'}): activate its environment, or pip install -e . at the root"
fi
{ read -r gpus && read -r config && read -r machine; } <<<"$facts"
[ "$gpus" -gt 0 ] || dry="${dry:-no GPU that PyTorch can use}"
out="${out:-first_gpu_hour${dry:+_dry}}"
failed=()

# Report a wrong command in one line before the certificate takes minutes.
check() {
    checked="$("${am[@]}" doctor --model "$asked" 2>&1)" || [ $? -eq 1 ] || die "${checked##*error: }"
    local plan line
    plan="$("${am[@]}" sweep "$task" --model "$asked" --data "$data" --plan 2>&1)" && return
    line="$(grep -m 1 'cannot be run: ' <<<"$plan")" || line="${plan##*error: }"
    die "$line"
}

# Call the function NAME with its folder and the arguments, unless it is done. It runs again if arguments, machine,
# version or files ($also) changed.
step() { # NAME [ARGUMENT ...]
    local folder="$out/$1" begun=$SECONDS code=0 before=""
    local inputs="$*"$'\n'"${also:-}"$'\n'"$machine"
    [ ! -e "$folder/inputs" ] || before="$(<"$folder/inputs")"
    if [ "$before" = "$inputs" ] && [ -e "$folder/done" ]; then
        echo "$1: done before" >&2
        return
    fi
    [ "$1" != doctor ] || check
    rm -f "$out/archive"
    if [ -n "$before" ] && [ "$before" != "$inputs" ]; then
        rm -f "$folder/done"
        mv "$folder" "$folder.before.$(date -u +%Y%m%dT%H%M%SZ).$$" # an hour of a GPU is never deleted
    fi
    mkdir -p "$folder" || exit 2
    printf '%s\n' "$inputs" >"$folder/inputs.new"
    mv "$folder/inputs.new" "$folder/inputs"
    echo "$1: begins" >&2
    "$1" "$folder" "${@:2}" 2>&1 | tee -ia "$folder/log" || code=$?
    case "$code" in
        0) echo "$((SECONDS - begun))" >"$folder/done.new" && mv "$folder/done.new" "$folder/done" ;;
        130 | 143) echo "$1: interrupted; give the same command again to go on" >&2; exit "$code" ;;
        *) failed+=("$1"); echo "$1: failed with exit code $code; its log: $folder/log" >&2 ;;
    esac
}

doctor() { printf '%s\n' "$checked" && "${am[@]}" doctor; }
certify() { "${am[@]}" certify "${@:2}" -o "$1/certificate.json"; }
efficiency() { "$python" "$here/measure/benchmark_efficiency.py" "${@:2}" -o "$1/efficiency.json"; }
sweep() { "${am[@]}" sweep "${@:2}" --results "$1/results"; }
two_workers() {
    local where=() run=("${am[@]}" sweep "${@:2}" --methods frame --ratios 0.5 --no-timing)
    # One GPU of this machine is shared; on a cluster each worker has its own.
    if [ -n "$address" ]; then where=(--address "$address"); elif [ "$gpus" -eq 1 ] && [ -z "$dry" ]; then
        where=(--gpus-per-worker 0.5)
    fi
    "${run[@]}" --results "$1/local" &&
        "${run[@]}" --results "$1/ray" --executor ray --workers 2 "${where[@]}" &&
        "$python" "$here/first_gpu_hour.py" replies "$1/local" "$1/ray" -o "$1/replies.json"
}

# Names, sizes and times of a folder's files: replaced data or weights are other inputs.
listing() { # FOLDER
    [ ! -d "$1" ] || find -L "$1" -type f -printf '%P %s %T@\n' | LC_ALL=C sort | cksum
}

if [ -n "$dry" ]; then
    echo "dry run ($dry): the embedded model, the mini benchmark and few samples, on the CPU" >&2
    step doctor "${asked:=embedded}" "$task" "$data"
    unset MODEL_PATH DEVICE_MAP DTYPE TAU_DATA_PATH
    export DEVICE=cpu SAMPLE_LIMIT=4
    model="embedded" data="mini" task="tau" methods="random,fast_v,snapkv" ratios="0.5" tokens=4
    certifying=(--seconds 10)
    measuring=(--config tiny --device cpu --durations 5,10 --methods fast_v,snapkv --ratios 0.5 --repeats 1)
else
    step doctor "${asked:=qwen2.5-omni-7b}" "$task" "$data"
    export SAMPLE_LIMIT="${SAMPLE_LIMIT:-20}"
    model="$asked" methods="random,fast_v,dart,snapkv" ratios="0.3,0.6,0.9" tokens=64
    certifying=()
    measuring=(--config "${EFFICIENCY_SIZE:-$config}" --device cuda --durations 90,300)
fi
weights="$(listing "${MODEL_PATH:-}")" clips="$(listing "$data")"
also="$weights" step certify --model "$model" "${certifying[@]}"
step efficiency "${measuring[@]}" --decode-tokens "$tokens"
on=("$task" --model "$model" --data "$data" --limit "$SAMPLE_LIMIT")
also="$weights $clips" step sweep "${on[@]}" --methods "$methods" --ratios "$ratios" --decode-tokens "$tokens"
also="$weights $clips ${address:+cluster}" step two_workers "${on[@]}"

"$python" "$here/first_gpu_hour.py" table "$out" ${dry:+--dry-run}
# Pack records, summaries, logs and tables by their endings, so that no clip, embedding or attention gets in.
if [ ! -e "$out/archive" ]; then
    archive="first_gpu_hour_$(uname -n)_$(date -u +%Y%m%d).tar.gz"
    (cd "$out" && find table.md doctor certify efficiency sweep two_workers -type f \( -name inputs -o -name log \
        -o -name '*.json' -o -name '*.jsonl' -o -name '*.csv' -o -name '*.txt' -o -name '*.md' \) -print0 |
        LC_ALL=C sort -z | tar -czf "$archive.new" --null --files-from -)
    mv "$out/$archive.new" "$out/$archive"
    echo "$archive" >"$out/archive"
fi
echo "table: $out/table.md; to send back: $out/$(<"$out/archive")" >&2
[ ${#failed[@]} -eq 0 ] && exit
echo "error: failed: ${failed[*]}; give the same command again to try these steps again" >&2
exit 1
