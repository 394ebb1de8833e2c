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
# Names of functions stay. What goes: those that the compiler gives to constants and tables; those of the standard library's and the
# argument parser's generic functions, a tenth of the program, which a backtrace shows between the lines that say where it was.
strip='--strip-debug --wildcard --strip-symbol=GCC_except_table* --strip-symbol=anon.* --strip-symbol=.Lanon*'
for name in '_ZN4core*' '_ZN5alloc*' '_ZN3std*' '_ZN9hashbrown*' '_ZN*_$LT$core..*' '_ZN*_$LT$alloc..*' '_ZN*_$LT$std..*' \
    '_ZN*_$LT$$RF$T$u20$as$u20$core*' '_ZN*serde_core*' '*clap_*' '*parquet*' '*regex*' '*plotters*' '*tracing_subscriber*' \
    '*utoipa*' '*toml_parser*' '*ttf_parser*' '_ZN4toml*' '_ZN4axum*' '_ZN4http*' '_ZN5tower*' '_ZN5hyper*' '_ZN10hyper_util*'; do
    strip="$strip --strip-symbol=$name"
done
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
