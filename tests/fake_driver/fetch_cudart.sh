#!/bin/sh
# Fetches NVIDIA's CUDA runtime, 12 and 13, and the headers of NVTX from Python packages:
#   fetch_cudart.sh DIR   ->   DIR/12/include DIR/12/lib DIR/13/include DIR/13/lib DIR/nvtx/include/nvtx3
# Each lib folder holds the shared libcudart.so.N and libcudart_static.a. Does nothing if they are already there.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}

fetch() { # package, version
    mkdir -p "$work/$1"
    "$python" -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: --dest "$work" "$1==$2"
    "$python" -m zipfile -e "$work/$(echo "$1" | tr - _)"-*.whl "$work/$1"
}

# The header folder and the library folder of a package are found by their contents.
install() { # package, major version
    header=$(find "$work/$1" -name cuda_runtime_api.h)
    library=$(find "$work/$1" -name libcudart_static.a)
    mkdir -p "$work/$2"
    cp -r "$(dirname "$header")" "$work/$2/include"
    cp -r "$(dirname "$library")" "$work/$2/lib"
    # The runtime's headers include crt/, which is in another package.
    [ -e "$work/$2/include/crt/host_defines.h" ] || cp -r "$crt" "$work/$2/include/"
    rm -rf "${dir:?}/$2"
    mv "$work/$2" "$dir/$2"
}

if [ -e "$dir/12/lib/libcudart.so.12" ] && [ -e "$dir/13/lib/libcudart.so.13" ] && [ -e "$dir/nvtx/include/nvtx3" ]; then
    exit 0
fi
work=$(mktemp -d "$dir/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
fetch nvidia-cuda-crt '13.*'
crt=$(find "$work/nvidia-cuda-crt" -type d -name crt)
fetch nvidia-cuda-runtime-cu12 '12.9.*'
fetch nvidia-cuda-runtime '13.*'
install nvidia-cuda-runtime-cu12 12
install nvidia-cuda-runtime 13
fetch nvidia-nvtx '13.*'
mkdir -p "$dir/nvtx/include"
cp -r "$(find "$work/nvidia-nvtx" -type d -name nvtx3)" "$dir/nvtx/include/"
