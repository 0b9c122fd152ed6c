#!/usr/bin/env bash
# One lease of a GPU: what a GPU can say about mmspec, in order of value, within SECONDS_ALL. In the repository's root:
#   bash tools/gpu/lease.sh       results: lines.jsonl, pytest.txt and lease.log in $OUT. DRY=1: on a CPU, tiny sizes.
# README.md has the steps and the settings.
set -u
ROOT=$PWD OUT=${OUT:-$PWD/.gpu/out} ALL=${SECONDS_ALL:-520} PY=${PYTHON:-python3}
STEPS=${STEPS:-smoke pytest equality figures recurrent methods profile}
PICTURES=${PICTURES:-large-default large-loop large-plain large-16 large-32 large-64 large-eager emoji-default emoji-loop
    emoji-plain emoji-16 emoji-32 3b-default 3b-loop 3b-plain 3b-32}
DRYFLAG=${DRY:+--dry}
TEMP=$(mktemp -d) LOG=$OUT/lease.log
SITE=$TEMP/site GO=$TEMP/go
mkdir -p "$OUT" "$SITE"
: > "$LOG"
SECONDS=0
left() { echo $((ALL - SECONDS)); }
note() { echo "[$SECONDS s] $*" | tee -a "$LOG"; }
wanted() { [[ " $STEPS " == *" $1 "* ]]; }

# 1. What the image lacks: wheels, offline; mmspec's own entry points, so that its plugins are found.
note "lease of $ALL s; $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null || echo 'no GPU')"
if [[ -z $DRYFLAG ]] && compgen -G ".gpu/whl/*.whl" > /dev/null; then
    $PY -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .gpu/whl/*.whl >> "$LOG" 2>&1 \
        || { note "the wheels cannot be installed: stopped"; tail -5 "$LOG"; exit 1; }
fi
$PY tools/gpu/dist_info.py "$ROOT" "$SITE" >> "$LOG" 2>&1 || { note "no metadata: stopped"; tail -5 "$LOG"; exit 1; }
export PYTHONPATH=$SITE:$ROOT:$ROOT/plugins PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4

step() { # label, most seconds, script, its arguments
    local label=$1 most=$2 script=$3
    shift 3
    [[ -n $DRYFLAG ]] && most=$((4 * most))
    (($(left) < most)) && most=$(left)
    ((most < 8)) && { note "$label: no time"; return 1; }
    note "$label: at most $most s"
    timeout -k 5 "$most" "$PY" -m "tools.gpu.$script" --seconds $((most - 4)) --out "$OUT" $DRYFLAG "$@" \
        > "$TEMP/$label.out" 2> "$TEMP/$label.err"
    local rc=$?
    # A process that does not end, with all of its lines written, has not failed.
    ((rc == 124 || rc == 137)) && grep -q "\"section\": \"done\", \"step\": \"${script%%_*}\"" "$OUT/lines.jsonl" && rc=0
    note "$label: exit $rc"
    { echo "--- $label"; grep -v "Loading weights" "$TEMP/$label.err" | tail -15; } >> "$LOG"
    return $rc
}

# 2. Imports, versions, a first text: without these nothing else can run.
if wanted smoke; then
    step smoke 90 smoke || { note "smoke failed: stopped"; tail -25 "$LOG"; tail -5 "$OUT/lines.jsonl"; exit 1; }
fi
wanted repeat && step repeat 90 repeat
wanted graphs && step graphs 120 figures --only llama-1b --modes default,eager

# 3. Tests, beside each other: they need processors to compile, and little of the device. What is timed later begins to
# compile here, too, and waits for GO.
testing() {
    local most=$(($(left) < 170 ? $(left) : 170)) files=${GPU_TESTS:-$(grep -rl "mark\.gpu" tests --include="test_*.py")}
    local how=(-m gpu -n 6 --dist worksteal)
    [[ -n $DRYFLAG ]] && how=(-m "not gpu and not slow" -p no:xdist) files=${GPU_TESTS:-tests/kernels/test_commit.py}
    TORCHINDUCTOR_COMPILE_THREADS=2 timeout -k 5 "$most" "$PY" -m pytest -v -p no:cacheprovider --no-header --tb=short \
        "${how[@]}" --timeout=120 --durations=12 $files > "$OUT/pytest.txt" 2>&1
    note "pytest: exit $?; $(tail -1 "$OUT/pytest.txt")"
}
TESTS=() TIMED=()
wanted pytest && { testing & TESTS+=($!); }
MODES="default compiled eager" LLAMAS="llama-1b llama-8b"
[[ -n $DRYFLAG ]] && MODES="default compiled" LLAMAS=llama-1b
wanted equality && for mode in $MODES; do
    { step "equality-$mode" 190 equality --modes "$mode" & } && TESTS+=($!)
done
((${#TESTS[@]})) && sleep 1
wanted figures && for model in $LLAMAS; do
    { step "figures-$model" 460 figures --only "$model" --go "$GO" & } && TIMED+=($!)
done
wanted recurrent && { step recurrent 460 recurrent --go "$GO" & TIMED+=($!); }
((${#TESTS[@]})) && wait "${TESTS[@]}"
touch "$GO"
note "go: what is compiled is timed, one step at a time"
wanted methods && { step methods 300 methods --go "$GO" & TIMED+=($!); }
wanted profile && { step profile 120 profile_round --go "$GO" & TIMED+=($!); }
((${#TIMED[@]})) && wait "${TIMED[@]}"

# 4. Pictures: every contestant compiles in a process of its own, then they are timed one after the other.
if wanted pictures; then
    rm -f "$GO" "$OUT"/ready-*
    drawn=() most=$(left)
    for who in $PICTURES; do
        { TORCHINDUCTOR_COMPILE_THREADS=1 step "pictures-$who" "$most" pictures --only "$who" --go "$GO" & } && drawn+=($!)
    done
    began=$SECONDS
    while (($(ls "$OUT" | grep -c '^ready-') < ${#drawn[@]} && SECONDS - began < most * 6 / 10)); do sleep 0.5; done
    note "$(ls "$OUT" | grep -c '^ready-') of ${#drawn[@]} pictures ready: go"
    touch "$GO"
    wait "${drawn[@]}"
    rm -f "$OUT"/ready-*
fi

# 5. A table, last.
note "done"
$PY -m tools.gpu.summary "$OUT"
rm -rf "$TEMP"
