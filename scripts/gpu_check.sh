#!/usr/bin/env bash
# Runs everything that needs a GPU, without a network and within 470 seconds in all: the environment, the tests marked gpu, the
# benchmark, the targets, and the main job on a model with GPT-2 small's shape. From the repository's root:
#
#     bash scripts/gpu_check.sh
#
# The output also goes to results/benchmarks/<device>.txt, without this machine's folders; the timings go to <device>.csv. If
# $OUT is set, both are copied there after each part. A part that fails or runs out of time does not stop the others; the exit
# code is then 1. The main job measures everything, although random weights do not do the task. It uses fewer prompts and shorter
# chains than a study.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false WANDB_MODE=offline PYTHONWARNINGS=ignore
unset TRITON_INTERPRET # so that kernels are compiled

PYTHON=${PYTHON:-$(test -x .venv/bin/python && echo .venv/bin/python || command -v python3 || command -v python)}
# seconds for each part
ENVIRONMENT_LIMIT=${ENVIRONMENT_LIMIT:-20} WEIGHTS_LIMIT=${WEIGHTS_LIMIT:-30}
TESTS_LIMIT=${TESTS_LIMIT:-80} NOISE_LIMIT=${NOISE_LIMIT:-15} BENCHMARK_LIMIT=${BENCHMARK_LIMIT:-120} RUN_LIMIT=${RUN_LIMIT:-110}
TARGETS_LIMIT=${TARGETS_LIMIT:-95}
RESULTS=results/benchmarks
NAME=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr 'A-Z/' 'a-z ' | xargs | tr ' ' '-')
NAME=${NAME:-no-gpu}
LOG=$RESULTS/$NAME.txt
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT
mkdir -p "$RESULTS"
: > "$LOG" # must exist when it is copied after the first part
failed=0

part() { # part TITLE LIMIT COMMAND...: run one part under its time limit and print how it ended
    local title=$1 limit=$2 started code=0
    shift 2
    started=$(date +%s)
    echo "== $title"
    timeout --kill-after=2 "$limit" "$@" || code=$?
    echo "== $title: exit code $code after $(($(date +%s) - started)) s (limit $limit s)"
    [ "$code" -eq 0 ] || failed=1
    save || failed=1
}

save() { # copy the results so far to $OUT, so that they stay if a later command is cut off
    [ -z "${OUT:-}" ] || cp "$RESULTS/$NAME"* "$OUT"/
}

environment() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || return 1
    "$PYTHON" - <<'PY'
import platform
from importlib.metadata import version

import torch

print("python", platform.python_version(), "torch", torch.__version__, "cuda", torch.version.cuda)
print(*(f"{name} {version(name)}" for name in ("triton", "transformers", "transformer-lens", "numpy")))
print("device", torch.cuda.get_device_name(), "capability", torch.cuda.get_device_capability())
PY
}
without_folders() { # remove this machine's folders: checkout, scratch folder, installed packages
    sed -u -E -e "s#$SCRATCH#<scratch>#g" -e "s#$PWD/##g" -e "s#/[^ :\"']*/(site|dist)-packages/##g"
}
export -f environment
export PYTHON

all_parts() {
    part "environment" "$ENVIRONMENT_LIMIT" bash -c environment
    part "tests" "$TESTS_LIMIT" env MERIDIAN_GPU_TESTS=1 "$PYTHON" -m pytest -m gpu tests/kernels tests/circuits/test_fused_gpu.py \
        --durations=5
    part "noise" "$NOISE_LIMIT" "$PYTHON" scripts/benchmark.py --draws --device cuda
    part "benchmark" "$BENCHMARK_LIMIT" "$PYTHON" scripts/benchmark.py --device cuda --models gpt2-small pocket \
        --name "$NAME" --scratch "$SCRATCH"
    part "targets" "$TARGETS_LIMIT" "$PYTHON" scripts/benchmark.py --targets --device cuda --name "$NAME" --scratch "$SCRATCH"
    part "weights" "$WEIGHTS_LIMIT" "$PYTHON" scripts/benchmark.py --write-model "$SCRATCH/study"
    part "main job, GPT-2-small shape, cuda" "$RUN_LIMIT" "$PYTHON" run.py task=ioi calibration=all \
        model=local model.name=gpt2-small model.path="$SCRATCH/study" model.device=cuda results="$SCRATCH/results" \
        measurement.regardless=true prompts.evaluation=96 prompts.held_out=96 prompts.discovery=96 prompts.reference=180 \
        measurement.llc.draws=8 measurement.llc.burn_in=2 measurement.llc.pilot=4
    return $failed
}

all_parts 2>&1 | without_folders | tee "$LOG"
code=${PIPESTATUS[0]}
save || code=1
exit "$code"
