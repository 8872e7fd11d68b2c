#!/usr/bin/env bash
# Properties of a built preload library, checked before it is loaded into other people's processes.
#
#   tests/gate.sh path/to/libculeak_shim.so [highest glibc version allowed]
#
# Without a version, that of this machine is the limit (a released library is checked with 2.17).
set -euo pipefail
export LC_ALL=C

library=${1:?usage: gate.sh LIBRARY [GLIBC]}
library=$(realpath "$library")
sources=$(dirname "$(realpath "$0")")/..
limit=${2:-$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)}
failures=0

claim() { # claim TEXT EVIDENCE: holds if the evidence against it is empty
    if [ -z "$2" ]; then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        sed 's/^/          /' <<<"$2"
        failures=$((failures + 1))
    fi
}

dynamic=$(readelf -dW "$library")
symbols=$(readelf --dyn-syms -W "$library")
versions=$(readelf -VW "$library")

needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
# Before glibc 2.34, dlsym and the threads were in separate libraries.
claim "needs only libc and the loader" \
    "$(grep -vxE 'libc\.so\.6|ld-linux[^ ]*\.so\.[0-9]+|libdl\.so\.2|libpthread\.so\.0' <<<"$needed" || true)"

listed=$(sed -nE 's/^ {12}(cu[A-Za-z0-9_]+) = [A-Za-z0-9_]+ \(.*\) => .*;$/\1/p' "$sources/src/cuda_functions.rs")
claim "the list of functions can be read" "$([ "$(wc -l <<<"$listed")" -gt 100 ] || echo "found ${listed:-nothing}")"
# The functions by which PyTorch's allocator informs the profiler, with signed and unsigned totals, and the entry of its engine.
torch=$(printf '_ZN3c1027report%sNS_6DeviceE\n' {MemoryUsageToProfilerEPv,OutOfMemoryToProfilerE}l{mm,ll})
# Those by which a program changes the settings of its allocator.
torch+=$(printf '\n_ZN3c10%s' 4cuda20CUDACachingAllocator20setAllocatorSettingsERKSs {4cuda20CUDACachingAllocator20setAllocatorSettings,16CachingAllocator26AcceleratorAllocatorConfig9parseArgs}ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)
[[ $(readelf -hW "$library") == *AArch64* ]] || torch+=$'\n'_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE$'\n'_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE
expected=$(printf '%s\n' "$listed" "$torch" culeak_{alloc,alloc_pages,owner_begin,owner_end,pool_begin,set_pages,bound,forward,forward_bfc,free,free_pages,mark,phase_begin,phase_end,snapshot,interval_begin,interval_read,hold} InitializeInjectionNvtx{2,Extension} dlsym dlvsym dlclose ioctl | sort)
exported=$(awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") { sub(/@.*/, "", $8); print $8 }' <<<"$symbols" | sort)
claim "exports every function of the list" "$(comm -23 <(echo "$expected") <(echo "$exported"))"
claim "exports nothing else" "$(comm -13 <(echo "$expected") <(echo "$exported"))"

required=$(grep -oE 'Name: GLIBC_[0-9.]+' <<<"$versions" | sed 's/.*GLIBC_//' | sort -Vu)
claim "needs no glibc newer than $limit" "$(awk -v limit="$limit" '
    function number(text, part) { split(text, part, "."); return part[1] * 1000000 + part[2] * 1000 + part[3] }
    NF && number($1) > number(limit)' <<<"$required")"

claim "is never unloaded" "$(grep -q 'FLAGS_1.*NODELETE' <<<"$dynamic" || echo 'no NODELETE in DT_FLAGS_1')"
# A library that is opened after the start shares 1,664 bytes with all others of its kind.
variables=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
claim "its thread-local variables fit where a library that is opened later has to place them" \
    "$([ $((${variables:-0})) -le 1024 ] || echo "$((variables)) bytes")"
claim "needs no executable stack" "$(readelf -lW "$library" | grep -E 'GNU_STACK.*E' || true)"
claim "has no text relocations" "$(grep -E 'TEXTREL' <<<"$dynamic" || true)"
claim "has no search path of the build machine" "$(grep -E 'RPATH|RUNPATH' <<<"$dynamic" || true)"
# A mapped segment must begin on a page of its own with the largest pages that kernels use: 64 KiB on aarch64.
machine() { readelf -hW "$1" | sed -n 's/^ *Machine: *//p'; }
page=$([[ $(machine "$library") == AArch64 ]] && echo $((64 << 10)) || echo 4096)
claim "can be mapped in pages of $page bytes" "$(readelf -lW "$library" | while read -r kind _ _ _ _ _ rest; do
    [[ $kind != LOAD || $((${rest##* })) -ge $page ]] || echo "a segment is aligned to ${rest##* }"
done)"
if [ "$(machine "$library")" = "$(machine /bin/true)" ]; then
    claim "loads lazily bound" "$(LD_PRELOAD=$library /bin/true 2>&1 || echo "exit status $?")"
    claim "loads bound at start" "$(LD_BIND_NOW=1 LD_PRELOAD=$library /bin/true 2>&1 || echo "exit status $?")"
else
    echo "not run whether it loads: it is for another processor"
fi

[ "$failures" -eq 0 ] || { echo "$failures of the claims failed for $library"; exit 1; }
