#!/bin/sh
# Build the C tests with sanitizers and run them.
#
#   sh tests/c/run.sh [BUILD_DIR]          address and undefined-behaviour sanitizers, every test
#   sh tests/c/run.sh thread [BUILD_DIR]   thread sanitizer, the thread pool's test
#
# With a BUILD_DIR the objects stay there and are compiled again only after a change of csrc.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
sanitizers=address,undefined
tests=$(cd "$root/tests/c" && ls test_*.c)
if [ "${1:-}" = thread ]; then
    sanitizers=thread
    tests=test_threads.c
    shift
fi
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    build=$(cd "$1" && pwd)/$(echo "$sanitizers" | tr , -)
else
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build/generated"
"${PYTHON:-python3}" "$root/csrc/generate.py" "$build/generated"

jobs=$(getconf _NPROCESSORS_ONLN)
flags="-std=c11 -O1 -g -Wall -Wextra -Werror -ffp-contract=fast -fno-math-errno -fno-trapping-math
    -fsanitize=$sanitizers -fno-sanitize-recover=all -I$root/csrc -I$root/csrc/include -I$build/generated"
export CC="${CC:-cc}" flags build root

# the kernels once, the levels first because they take longest
for source in "$root"/csrc/isa_*.c "$root"/csrc/*.c; do
    name=$(basename "$source" .c)
    object=$build/$name.o
    case "$name" in module*) continue ;; esac
    [ -f "$object" ] && [ -z "$(find "$root/csrc" "$build/generated" -type f -newer "$object")" ] && continue
    echo "$name"
done | awk '!seen[$0]++' | xargs -P "$jobs" -I NAME sh -c '$CC $flags -c "$root/csrc/NAME.c" -o "$build/NAME.o"'

objects=$(for source in "$root"/csrc/*.c; do basename "$source" .c; done | grep -v '^module' | sed "s|.*|$build/&.o|")
export objects
echo "$tests" | sed 's/\.c$//' |
    xargs -P "$jobs" -I NAME sh -c '$CC $flags "$root/tests/c/NAME.c" $objects -o "$build/NAME" -lm -lpthread'

# a report must end the run, and a NULL from an impossible allocation is what some tests ask for
export ASAN_OPTIONS="allocator_may_return_null=1:${ASAN_OPTIONS:-}" TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"
# each test's output in one piece, although they run side by side
if ! echo "$tests" | sed 's/\.c$//' |
    xargs -P "$jobs" -I NAME sh -c 'text=$("$build/NAME" 2>&1); status=$?; echo "NAME: $text"; exit $status'; then
    echo "FAILED"
    exit 1
fi
