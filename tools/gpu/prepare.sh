#!/usr/bin/env bash
# Before a lease, in the root of the repository:  bash tools/gpu/prepare.sh         afterwards:  … prepare.sh --undo
# It puts wheels for Python 3.12 into .gpu/, which git ignores; leaves what no step reads out of this work tree (sparse
# checkout); and adds up what would travel.
#   MODELS="text-14m text-1m"   shipped models that travel; KEEP="mmspec tests …": folders that do
#   WHEELS=few                  without diffusers (6 MiB): pipelines and pictures are then missing
#   EXTRA_WHEELS="gguf"         more wheels
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
MOST=$((64 * 1024 * 1024))
MODELS=${MODELS-text-14m text-14m-eagle3 text-1m ssm-5m}
KEEP=${KEEP-mmspec plugins tests tools}
PYTHON=${PYTHON:-python3}

if [[ ${1:-} == --undo ]]; then
    git sparse-checkout disable
    rm -rf .gpu
    git status --short | head -5
    echo "the whole checkout is back"
    exit 0
fi

EXCLUDE=$(git rev-parse --git-path info/exclude)
mkdir -p "$(dirname "$EXCLUDE")" .gpu/whl
grep -qxF '/.gpu/' "$EXCLUDE" 2> /dev/null || echo '/.gpu/' >> "$EXCLUDE"

# Wheels of the versions that the project pins, so that the device runs what is tested here.
NAMES=(pydantic pydantic_core annotated-types typing-inspection typing_extensions pluggy)
[[ ${WHEELS:-all} == few ]] || NAMES+=(diffusers importlib_metadata zipp lazy-importer)
WANTED=()
for name in "${NAMES[@]}" ${EXTRA_WHEELS:-}; do
    pinned=$(grep -iE "^${name//[-_]/[-_]}==" constraints.txt | head -1 || true)
    WANTED+=("${pinned:-$name}")
done
if [[ ${WANTED[*]} != "$(cat .gpu/wanted 2> /dev/null)" ]]; then
    rm -f .gpu/whl/*.whl
    PLATFORMS=()
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do PLATFORMS+=(--platform "${tag}_x86_64"); done
    $PYTHON -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${PLATFORMS[@]}" -d .gpu/whl "${WANTED[@]}" 2> .gpu/pip.log || { grep -v WARNING .gpu/pip.log; exit 1; }
    rm -f .gpu/pip.log
    echo "${WANTED[*]}" > .gpu/wanted
fi

{
    echo '/*'
    for folder in $(git ls-tree -d --name-only HEAD); do
        [[ " $KEEP assets model_cards " == *" $folder "* ]] || echo "!/$folder/"
    done
    printf '%s\n' '!/model_cards/*' '/model_cards/*.md' # pipelines of shipped models read their cards
    printf '%s\n' '!/assets/*' '/assets/pyproject.toml' # by this file mmspec knows a source tree
    for model in $MODELS; do echo "/assets/$model/"; done
} | git sparse-checkout set --no-cone --stdin

sum() { # MiB of the files whose names come in, each ended by NUL; what is not there does not travel
    $PYTHON -c 'import os, sys
names = [name for name in sys.stdin.buffer.read().split(b"\0") if name]
print(sum(os.lstat(name).st_size for name in names if os.path.lexists(name)))'
}
tree=$(git ls-files -z --cached --others --exclude-standard | sum)
carried=$(find .gpu/whl -type f -print0 | sum)
total=$((tree + carried))
awk -v t="$tree" -v c="$carried" -v a="$total" -v m="$MOST" 'BEGIN {
    printf "travels: work tree %.2f MiB and .gpu/whl %.2f MiB, %.2f of %.0f MiB\n", t / 2^20, c / 2^20, a / 2^20, m / 2^20 }'
((total < MOST)) || { echo "too much: name fewer MODELS, less to KEEP, or WHEELS=few"; exit 1; }
