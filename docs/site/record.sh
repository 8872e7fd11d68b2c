#!/usr/bin/env bash
# Records the pages of the gallery that show a real GPU, in less than a minute. Needs nvcc, python3 with PyTorch, and CULEAK_BIN, the folder
# of culeak. docs/site/examples.py adds what is in docs/site/gpu to the gallery.
#
#     CULEAK_BIN=target/release docs/site/record.sh docs/site/gpu
set -euo pipefail
here=$(dirname "$(realpath "$0")")
mkdir -p "$1" && out=$(realpath "$1")
PATH=$(realpath "${CULEAK_BIN:?the folder of culeak}"):$PATH:/usr/local/cuda/bin
work=/tmp/train # pages show it, also in compressed data
mkdir "$work"
trap 'rm -rf "$work"' EXIT
cp "$here"/../example/train.{cu,py} "$work" && cd "$work"

nvcc -g -O2 -lineinfo train.cu -o train
culeak run -o leaks --no-report --html report.html -- ./train & jobs=($!)
culeak run -o after --no-report --why --timeline --html timeline.html -- python3 train.py & jobs+=($!)
culeak run -o before --no-report -- python3 train.py fixed & jobs+=($!)
for rank in 0 1 2 3; do
    RANK=$rank WORLD_SIZE=4 culeak run -o job-runs --no-report -- python3 train.py "$([ $rank = 2 ] && echo leaks || echo fixed)" & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
culeak why after -o why.html
culeak diff before/*.culeak after/*.culeak -o diff.html
culeak trend after --against marks -o trend.html
culeak report job-runs -o job.html
sed -i "s,\b$HOSTNAME\b,vm,g; s,$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/,,g" ./*.html
for page in *.html; do gzip -9n <"$page" >"$out/$page.gz"; done
du -cb "$out"/*.html.gz
