#!/usr/bin/env bash
# Records the program of the images on the fake driver: record.sh CULEAK FOLDER writes report.html and timeline.html. Needs a
# C++ compiler.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
culeak=$(realpath "$1")
cd "$2"
fake=$("$culeak" shim-path --fake-driver)
cp "$here/train.cpp" .
g++ -g -O1 -o train train.cpp "$fake/libcuda.so.1" -Wl,-rpath,"$fake"
# A finished run, and memory over time.
"$culeak" run --no-report --html report.html -- ./train 30
"$culeak" run --no-report --timeline --html timeline.html -- ./train 60 40
