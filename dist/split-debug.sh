#!/bin/sh
# Splits a built program into what is shipped and what debuggers read, which is most of its size.
#
#   dist/split-debug.sh PROGRAM TO [DEBUG]
#
# PROGRAM  as it was built; it stays as it is
# TO       where the program goes: without debugging sections, with its table of symbols, so that the backtrace of a panic
#          still names functions; lines of source come back as soon as the other part is found
# DEBUG    a folder for the other part, as debuggers look for it: DEBUG/.build-id/NN/NNNN.debug (/usr/lib/debug on Debian).
#          Without it that part is not written: gdb and perf find it in PROGRAM, by the same build id
set -eu

program=$1 to=$2 debug=${3:-}
# Names of our functions that serve, or may be called by those, stay. Those of studies, of the command line and of what reads configurations
# go; those of others' go, and those of their generic functions that were compiled for our types: a tenth of
# the program, which a backtrace shows between the lines that say where it was.
strip='--strip-all --wildcard'
for name in '_ZN4core*' '_ZN5alloc*' '_ZN3std*' '_ZN9hashbrown*' '*_$LT$core..*' '*_$LT$alloc..*' '*_$LT$std..*' '*serde_core*' \
    '*clap_*' '*parquet*' '*utoipa*' '*__CALLSITE*' '*undercroft_study*' '*undercroft_trace*' '*undercroft_config*' '*undercroft_api*' \
    '*undercroft3cli*'; do
    strip="$strip --keep-symbol=!$name"
done
strip="$strip --keep-symbol=main --keep-symbol=*undercroft*"
set -f
mkdir -p "$(dirname "$to")"
id=$(readelf -n "$program" | sed -n 's/.*Build ID: //p')
if [ -n "$debug" ] && [ -n "$id" ]; then
    folder=$debug/.build-id/$(echo "$id" | cut -c1-2)
    mkdir -p "$folder"
    kept=$folder/$(echo "$id" | cut -c3-).debug
    objcopy --only-keep-debug --compress-debug-sections "$program" "$kept"
    chmod 0644 "$kept"
    # shellcheck disable=SC2086
    objcopy $strip --add-gnu-debuglink="$kept" "$program" "$to"
else
    # shellcheck disable=SC2086
    objcopy $strip "$program" "$to"
fi
chmod 0755 "$to"
