#!/usr/bin/env bash
# Download X-ARES' data with curl into env/<task>/, for machines where `audiomarathon encoder download` cannot be used.
# Usage: tools/download_manually.sh [TASK ...]    (default: all public tasks; the same command continues after a stop)
set -euo pipefail

declare -A records=(
    [asvspoof2015]=14718430 [clotho]=14856454 [cremad]=14646870 [desed]=14808180 [esc50]=14614287
    [fluentspeechcommands]=14722453 [freemusicarchive]=14725056 [fsd50k]=14868441 [fsdkaggle2018]=14725117
    [gtzan_genre]=14722472 [libricount]=14722478 [librispeech]=14716252 [librispeechmalefemale]=14716252
    [maestro]=14858022 [nsynthinstument]=14725174 [ravdess]=14722524 [speechcommandsv1]=14722647
    [urbansound8k]=14722683 [vocalimitations]=14862060 [vocalsound]=14722710 [voxceleb1]=14811963
    [voxlingua33]=14812245
)
base=${AUDIOMARATHON_ZENODO:-https://zenodo.org}

(($#)) || set -- $(printf '%s\n' "${!records[@]}" | sort)
for task in "$@"; do
    record=${records[$task]:?"$task: no such task; allowed: ${!records[*]}"}
    folder=env/$task
    [[ -f $folder/.audio_tar_ready ]] && continue
    mkdir -p "$folder"
    # One line a file: its MD5, its address and its name.
    curl -fsSL --retry 5 "$base/api/records/$record" | python3 -c '
import json, sys
for file in json.load(sys.stdin)["files"]:
    print(file["checksum"].removeprefix("md5:"), file["links"]["self"], file["key"])
' | while read -r md5 url name; do
        [[ $name != */* && $name != .* ]] || { echo "$name: not allowed as a file name" >&2; exit 1; }
        [[ -f $folder/$name ]] && continue
        curl -fL --retry 5 -C - -o "$folder/.$name.partial" "$url"
        if ! echo "$md5  $folder/.$name.partial" | md5sum --check --status; then
            rm "$folder/.$name.partial"
            echo "$folder/$name: arrived damaged; run the same command again" >&2
            exit 1
        fi
        mv "$folder/.$name.partial" "$folder/$name"
    done
    touch "$folder/.audio_tar_ready"
done
