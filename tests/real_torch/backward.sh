#!/usr/bin/env bash
# What the lines of backward passes need of PyTorch, of several versions, from the wheels of PyPI and without a GPU: the exported functions,
# and a backward pass on the CPU, whose blocks benches/steps/allocator.cpp reports as a GPU's. x86-64 only; needs g++.
#
#   tests/real_torch/backward.sh DIR [VERSION...]      default: 2.6.0 2.9.1 2.13.0. DIR keeps the wheels, about 2 GB for each version
#
# The gradient of each operator must have that operator's line, and the line that called backward() below it. The libraries of CUDA, which
# the wheels need to be loaded, are replaced by empty ones. CULEAK names the program under test [target/debug/culeak].
set -euo pipefail
here=$(dirname "$(realpath "$0")")
sources=$here/../..
mkdir -p "${1:?usage: backward.sh DIR [VERSION...]}"
dir=$(realpath "$1")
versions=("${@:2}")
[ ${#versions[@]} -gt 0 ] || versions=(2.6.0 2.9.1 2.13.0)
python=${PYTHON:-python3}
culeak=$(realpath "${CULEAK:-$sources/target/debug/culeak}")
shim=$("$culeak" shim-path)

engine=_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEE
intrusive=N3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEE
needed=(_ZN5torch8autograd32get_current_graph_task_exec_infoEv _ZN5torch8autograd16get_current_nodeEv _ZN2at15sequence_number4peekEv
    _ZN2at14RecordFunction15currentThreadIdEv)

for version in "${versions[@]}"; do
    home=$dir/torch-$version
    pure=(typing_extensions sympy mpmath filelock fsspec jinja2 networkx markupsafe)
    [ -d "$home" ] || "$python" -m pip -q --disable-pip-version-check install --no-deps --no-compile --target "$home" "torch==$version" "${pure[@]}"
    lib=$home/torch/lib stubs=$home/stubs
    if [ ! -d "$stubs" ]; then
        mkdir "$stubs.new"
        nm -D --undefined-only "$lib"/*.so | sed -nE 's/.* U ((__cuda|cu|nv|nccl)[A-Za-z0-9_]+)(@.*)?$/int \1(void) { return 999; }/p' | sort -u >"$stubs.new/all.c"
        cc -w -shared -fPIC -Wl,-soname,all.so "$stubs.new/all.c" -o "$stubs.new/all.so"
        echo >"$stubs.new/none.c"
        for library in "$lib"/*.so*; do readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(lib\(cu\|nv\|nccl\).*\)\]/\1/p'; done | sort -u | while read -r name; do
            cc -shared "$stubs.new/none.c" -Wl,-soname,"$name" -Wl,--no-as-needed "$stubs.new/all.so" -o "$stubs.new/$name"
        done
        mv "$stubs.new" "$stubs"
    fi
    exported=$(nm -D --defined-only "$lib/libtorch_cpu.so" | sed 's/.* //')
    missing=()
    for symbol in "${needed[@]}"; do grep -qx "$symbol" <<<"$exported" || missing+=("$symbol"); done
    case $exported in
    *"${engine}S2_INS0_4NodeEEONS0_11InputBufferE"*) pointer=shared ;;
    *"$engine${intrusive}ONS0_11InputBufferE"*) pointer=intrusive ;;
    *) missing+=("$engine…") ;;
    esac
    [ ${#missing[@]} -eq 0 ] || { echo "PyTorch $version does not export: ${missing[*]}"; exit 1; }
    work=$(mktemp -d)
    "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"$home/torch/include" "$sources/benches/steps/allocator.cpp" -L"$lib" -lc10 -o "$work/libc10_cuda.so"
    PYTHONPATH=$home LD_LIBRARY_PATH=$stubs CULEAK_OUTPUT=$work/r.culeak LD_PRELOAD=$shim "$python" -B -W ignore "$here/backward.py" "$work/libc10_cuda.so" 2>"$work/err"
    ! grep -E "autograd|gradients" "$work/err"
    "$culeak" report "$work/r.culeak" --by stack --kind tensor --top 0 --json >"$work/r.json"
    "$python" "$here/backward.py" "$work/r.json" "PyTorch $version, $pointer pointers:"
    rm -r "$work"
done
