#!/bin/bash
# From a model to a trained drafter: prepare data, launch vLLM through specshim, train.
#
#   bash examples/train_drafter.sh
#
# runs with a tiny hybrid model (Gated DeltaNet) that is made on the spot, on the CPU
# where there is no GPU. Variables of the environment override the
# block below:
#
#   MODEL=Qwen/Qwen3.5-9B DATASET=responses.jsonl SPECULATOR_TYPE=dflash \
#       VLLM_GPUS=0 TRAIN_GPUS=1 bash examples/train_drafter.sh
#
# vLLM and speculators have environments of their own; specshim is installed in both.
# Written for speculators 0.9.

set -euo pipefail

# ============ Configuration ============
MODEL="${MODEL:-tiny}"                      # tiny, or a name or path
DATASET="${DATASET:-}"                      # JSONL of conversations with the model's own
                                            # responses; made up for the tiny model
SPECULATOR_TYPE="${SPECULATOR_TYPE:-eagle3}"  # eagle3, dflash, ...
MODE="${MODE:-online}"                      # online: states are asked for while training
                                            # offline: they are saved first
OUTPUT_DIR="${OUTPUT_DIR:-./output}"
VLLM_PYTHON="${VLLM_PYTHON:-python}"        # of the environment with vLLM
TRAIN_PYTHON="${TRAIN_PYTHON:-python}"      # of the environment with speculators
VLLM_PORT="${VLLM_PORT:-8000}"
VLLM_ARGS="${VLLM_ARGS:-}"                  # more flags of vllm serve
TRAIN_ARGS="${TRAIN_ARGS:-}"                # more flags of speculators train
TARGET_LAYER_IDS="${TARGET_LAYER_IDS:-}"    # default: 2, N//2, N-3 of N layers
SEQ_LENGTH="${SEQ_LENGTH:-8192}"
EPOCHS="${EPOCHS:-5}"
LR="${LR:-1e-4}"

# Online, vLLM and the trainer need GPUs of their own.
VLLM_GPUS="${VLLM_GPUS:-0}"
TRAIN_GPUS="${TRAIN_GPUS:-1}"
NUM_TRAIN_GPUS="${NUM_TRAIN_GPUS:-1}"
# =======================================

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
HIDDEN_STATES_DIR="$OUTPUT_DIR/served"      # what the server writes
URL="http://localhost:${VLLM_PORT}"
mkdir -p "$OUTPUT_DIR"

if [ "$MODEL" = tiny ]; then
    MODEL="$("$VLLM_PYTHON" -c 'import sys; from pathlib import Path
from specshim.tiny import ensure_tiny_model
print(ensure_tiny_model("qwen3_5", Path(sys.argv[1]).resolve()))' "$OUTPUT_DIR/models")"
    if [ -z "$DATASET" ]; then
        DATASET="$OUTPUT_DIR/conversations.jsonl"
        "$TRAIN_PYTHON" "$HERE/made_up_conversations.py" > "$DATASET"
    fi
    TARGET_LAYER_IDS="${TARGET_LAYER_IDS:-2 4 6}"
    SEQ_LENGTH=256 LR=1e-3
    VLLM_ARGS="--max-model-len 512 --max-num-seqs 8 --enforce-eager $VLLM_ARGS"
    TRAIN_ARGS="--num-layers 1 --num-workers 0 $TRAIN_ARGS"
    if [ "$SPECULATOR_TYPE" = dflash ]; then
        TRAIN_ARGS="--block-size 4 --max-anchors 32 $TRAIN_ARGS"
    fi
fi
if [ -n "$TARGET_LAYER_IDS" ]; then
    LAYERS=(--target-layer-ids $TARGET_LAYER_IDS)  # the same for both
else
    LAYERS=()
fi

# From vLLM 0.30 on, speculators' prepare-data is answered with 403 without this.
if "$VLLM_PYTHON" -c 'import sys; from packaging.version import Version
from specshim.detect import detect_environment
sys.exit(Version(detect_environment().vllm) < Version("0.30"))'; then
    VLLM_ARGS="--enable-scale-out $VLLM_ARGS"
fi

if "$TRAIN_PYTHON" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    TRAIN=("$TRAIN_PYTHON" -m torch.distributed.run --standalone
           --nproc_per_node "$NUM_TRAIN_GPUS" "$HERE/train.py")
else
    echo "No GPU: everything runs on the CPU."
    export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
    TRAIN=("$TRAIN_PYTHON" "$HERE/train.py")
    TRAIN_ARGS="--draft-attn-impl eager --loss-implementation eager
                --hidden-states-dtype float32 $TRAIN_ARGS"
fi

SPECULATORS=("$TRAIN_PYTHON" -c
             'import specshim; from speculators.cli import app; app()')

echo "=== Step 1: Launching vLLM ==="
CUDA_VISIBLE_DEVICES="$VLLM_GPUS" "$VLLM_PYTHON" -m specshim.launch_vllm "$MODEL" \
    --hidden-states-path "$HIDDEN_STATES_DIR" "${LAYERS[@]}" \
    -- --port "$VLLM_PORT" $VLLM_ARGS &
VLLM_PID=$!

stop_server() {
    kill "$VLLM_PID" 2>/dev/null || true
    wait "$VLLM_PID" 2>/dev/null || true
}
trap stop_server EXIT

echo "Waiting for vLLM ..."
until curl -sf "$URL/health" > /dev/null 2>&1; do
    kill -0 "$VLLM_PID" 2>/dev/null || { echo "vLLM has ended, see above." >&2; exit 1; }
    sleep 1
done

echo "=== Step 2: Preparing data ==="
"${SPECULATORS[@]}" prepare-data \
    --model "$MODEL" \
    --data "$DATASET" \
    --render-endpoint "$URL" \
    --output "$OUTPUT_DIR/data" \
    --seq-length "$SEQ_LENGTH"

if [ "$MODE" = offline ]; then
    echo "=== Step 3: Saving hidden states ==="
    "${SPECULATORS[@]}" generate-offline-data \
        --model "$MODEL" \
        --endpoint "$URL/v1" \
        --preprocessed-data "$OUTPUT_DIR/data" \
        --validate-outputs
    stop_server  # its GPUs are free now
    ON_MISSING=raise
else
    ON_MISSING=generate
fi

echo "=== Step 4: Training ==="
CUDA_VISIBLE_DEVICES="$TRAIN_GPUS" "${TRAIN[@]}" \
    --speculator-type "$SPECULATOR_TYPE" \
    --verifier-name-or-path "$MODEL" \
    --data-path "$OUTPUT_DIR/data" \
    --vllm-endpoint "$URL/v1" \
    --on-missing "$ON_MISSING" \
    --save-path "$OUTPUT_DIR/checkpoints" \
    --epochs "$EPOCHS" \
    --lr "$LR" \
    --total-seq-len "$SEQ_LENGTH" \
    "${LAYERS[@]}" $TRAIN_ARGS

echo "Done. Checkpoints are in $OUTPUT_DIR/checkpoints."
