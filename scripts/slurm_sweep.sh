#!/usr/bin/env bash
# A sweep over all nodes of a Slurm job: Ray's head on the first node, a Ray node on each other node, one worker a GPU.
#
#     sbatch --nodes 2 --gpus-per-node 4 --cpus-per-task 32 --time 12:00:00 \
#         scripts/slurm_sweep.sh tau gtzan --model qwen2.5-omni --methods random,fast_v,dart --ratios 0.1:0.9:0.1
#
# Arguments are those of `audiomarathon sweep`. Activate the environment before sbatch, or name it: VENV=/path/to/venv.
# Every node must see results, data and checkpoints at the same paths. If a job runs out of time, submit it again with
# any number of nodes: it continues where it stopped.
#SBATCH --job-name=audiomarathon
#SBATCH --ntasks-per-node=1
#SBATCH --output=audiomarathon-%j.log
set -euo pipefail

if [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "error: not inside a Slurm job: sbatch --nodes 2 --gpus-per-node 4 $0 TASKS…" >&2
    exit 2
fi
# shellcheck source=/dev/null
[ -z "${VENV:-}" ] || source "$VENV/bin/activate"
ray --version >/dev/null 2>&1 || { echo "error: no Ray here: pip install 'ray>=2.40'" >&2; exit 2; }

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port="${RAY_PORT:-$((20000 + SLURM_JOB_ID % 20000))}" # two jobs may meet on a node
cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}"
gpus="${SLURM_GPUS_ON_NODE:-0}"
# The first address that other nodes can reach: Debian resolves its own name to 127.0.1.1.
ip="$(srun --nodes 1 --ntasks 1 --nodelist "${nodes[0]}" bash -c 'hostname --ip-address; hostname --all-ip-addresses' |
    awk '{for (i = 1; i <= NF; i++) if ($i !~ /^127\.|:/ && !found++) print $i}')"
address="${ip:-127.0.0.1}:$port"
# Do not nice the measured workers, send no usage reports, and let nobody else on the network join.
export RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN

# srun runs each Ray node as a step of the job, so all end with it. Without --cpus-per-task a step has one core (srun no
# longer takes it from sbatch).
start_node() { # NODE, arguments of ray start
    srun --overlap --nodes 1 --ntasks 1 --cpus-per-task "$cpus" --nodelist "$1" \
        ray start "${@:2}" --num-cpus "$cpus" --num-gpus "$gpus" --disable-usage-stats --block &
}
trap 'jobs -p | xargs -r kill 2>/dev/null || true' EXIT

start_node "${nodes[0]}" --head --node-ip-address "${address%:*}" --port "$port" --include-dashboard false
head=$!
until ray status --address "$address" >/dev/null 2>&1; do
    kill -0 "$head" 2>/dev/null || { echo "error: Ray's head at $address has ended; its reason is above" >&2; exit 1; }
    sleep 2
done
for node in "${nodes[@]:1}"; do
    start_node "$node" --address "$address"
done
wanted="${#nodes[@]}"
for _ in $(seq 60); do # wait two minutes for all nodes, then start without the missing ones
    alive="$(python -c "import ray; ray.init('$address', log_to_driver=False, logging_level='error'); \
print(sum(node['Alive'] for node in ray.nodes()))" 2>/dev/null || echo 0)"
    [ "$alive" -lt "$wanted" ] || break
    sleep 2
done
echo "Ray: $alive of $wanted nodes, $gpus GPUs each" >&2

audiomarathon sweep "$@" --executor ray --address "$address"
