#!/usr/bin/env bash
# Serve a model with vLLM, for the throughput of base through --model openai (docs/models/openai.md).
#
#   scripts/serve_vllm.sh qwen2.5-omni                         a model of `audiomarathon list models`
#   scripts/serve_vllm.sh qwen3-omni --tensor-parallel-size 4  further arguments go to `vllm serve`
#   scripts/serve_vllm.sh my-org/my-audio-model                a hub id, or a folder: served with the common flags
#   MODEL_PATH=/models/phi4mm scripts/serve_vllm.sh phi4mm     a checkpoint in a folder (phi4mm needs one)
#   PORT=8001 scripts/serve_vllm.sh voxtral                    default: 8000
#
# Run it in an environment with vLLM (pip install 'vllm[audio]'). It prints the command that asks the server; run that
# one in the suite's environment. The flags are those that vLLM documents; we have served no real weights.
set -euo pipefail

usage() { sed -n 's/^# \{0,1\}//; 2,11p' "$0"; }
fail() { echo "error: $*" >&2; exit 2; }
case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    "" | -*) usage >&2; exit 2 ;;
esac
model="$1"
shift

limits=(--limit-mm-per-prompt '{"audio": 1, "image": 0, "video": 0}')
length=16384 # positions: 300 s at 25 tokens a second, and the prompt
flags=()
half_deaf="" # models that vLLM feeds 30 s of a clip
case "$model" in
    qwen2.5-omni | qwen2.5-omni-7b) checkpoint=Qwen/Qwen2.5-Omni-7B ;;
    qwen2.5-omni-3b) checkpoint=Qwen/Qwen2.5-Omni-3B ;;
    qwen3-omni) checkpoint=Qwen/Qwen3-Omni-30B-A3B-Instruct ;;
    audio-flamingo-3) checkpoint=nvidia/audio-flamingo-3-hf ;;
    voxtral) checkpoint=mistralai/Voxtral-Mini-3B-2507 ;;
    voxtral-small) checkpoint=mistralai/Voxtral-Small-24B-2507 ;;
    qwen2-audio-30s) checkpoint=Qwen/Qwen2-Audio-7B-Instruct length=8192 half_deaf=1 ;;
    gemma3n) checkpoint=google/gemma-3n-E4B-it half_deaf=1 ;;
    gemma3n-e2b) checkpoint=google/gemma-3n-E2B-it half_deaf=1 ;;
    phi4mm)
        checkpoint=microsoft/Phi-4-multimodal-instruct
        [ -d "${MODEL_PATH:-}/speech-lora" ] || fail "phi4mm: MODEL_PATH must name the checkpoint's folder, with" \
            "speech-lora/ in it; without that adapter it is another model"
        flags=(--trust-remote-code --enable-lora --max-lora-rank 320
            --default-mm-loras "{\"audio\": \"$MODEL_PATH/speech-lora\"}")
        ;;
    qwen2-audio) fail "qwen2-audio hears whole clips, vLLM's only their first 30 s; allowed: qwen2-audio-30s" ;;
    whisper-*) fail "$model: vLLM serves it for transcriptions, not for chats, which is all that --model openai asks;" \
        "allowed: audiomarathon run --model $model" ;;
    embedded | aero-1) fail "$model: vLLM does not list it; allowed: other names of audiomarathon list models, a hub id" ;;
    */*) checkpoint="$model" ;;
    *) fail "unknown model '$model'; allowed: a name of audiomarathon list models, a hub id, a folder; --help explains" ;;
esac
case "$model" in
    voxtral*)
        limits=(--limit-mm-per-prompt '{"audio": 1}') # it takes neither images nor videos
        flags=(--tokenizer-mode mistral --config-format mistral --load-format mistral)
        ;;
esac
port="${PORT:-8000}"
[[ "$port" =~ ^[0-9]+$ ]] || fail "PORT=$port: must be a number, such as 8000"
command -v vllm >/dev/null || fail "no vllm here: pip install 'vllm[audio]' in an environment of its own, and activate it"
[ -z "$half_deaf" ] || echo "warning: vLLM feeds $model the first 30 s of each clip only" >&2

cat >&2 <<TEXT
Once the server says that it is up, in the suite's environment:

    OPENAI_BASE_URL=http://localhost:$port/v1 audiomarathon run tau --model openai --model-path $checkpoint --no-timing --batch-size 16

TEXT
# Greedy decoding only: without --generation-config vllm, vLLM would apply the checkpoint's penalties.
exec vllm serve "${MODEL_PATH:-$checkpoint}" --served-model-name "$checkpoint" --port "$port" \
    --generation-config vllm --max-model-len "$length" "${limits[@]}" "${flags[@]}" "$@"
