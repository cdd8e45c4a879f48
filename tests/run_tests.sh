#!/usr/bin/env bash
# Every test of a change, suite by suite. Each suite prints its seconds and has a ceiling, so that a hang is a failure
# with a name. Ends with a closing line that counts tests, not suites. Called by ./run test after the release build.
#   --all         the slow tests too
#   --only SUITE  one suite (may be repeated); --list names them
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
jobs=${NEURALDBG_JOBS:-$(nproc)}
results=$root/build/results
all=0
only=()
list=0
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=1 ;;
    --only) only+=("$2"); shift ;;
    --list) list=1 ;;
    *) echo "usage: ./run test [--all] [--list] [--only SUITE]…" >&2; exit 2 ;;
  esac
  shift
done
# Read by the random-kill suites (tests/shared/kill_windows.h), too.
export NEURALDBG_TEST_ALL=$all
markers='not slow'
[ $all = 1 ] && markers=''
export PYTHONPATH=$root CI_RESULTS=$results OMP_NUM_THREADS=1

cmake_tests() {  # preset, extra arguments
  cmake --preset "$1" -DNEURALDBG_BUILD_TESTS=ON "${@:2}" >/dev/null
}

# The same build tree that the wheel came from; only the tests are added.
suite_release() {
  cmake_tests release && cmake --build build/release -j "$jobs" &&
    ctest --test-dir build/release --output-on-failure --output-junit "$results/release.xml"
}
sanitized() {  # preset: ring, manifest and ingest under a sanitizer
  cmake_tests "$1" && cmake --build "build/$1" -j "$jobs" --target sanitized_tests &&
    ctest --test-dir "build/$1" -L sanitized --output-on-failure --output-junit "$results/$1.xml"
}
suite_tsan() { TSAN_OPTIONS=halt_on_error=1 sanitized tsan; }
suite_asan() { ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 sanitized asan-ubsan; }
python_tests() {  # name, paths…
  .venv/bin/python -m pytest -q -m "$markers" --junitxml "$results/$1.xml" "${@:2}"
}
suite_structure() { python_tests structure tests/lint tests/model; }
suite_agent() { python_tests agent tests/agent; }
suite_daemon() { python_tests daemon tests/daemon; }
suite_e2e() { python_tests e2e tests/e2e tests/issues; }

# name, ceiling in seconds (about ten times what it takes: it only catches hangs)
suites=(structure:300 release:2400 agent:2700 daemon:900 e2e:2000 asan:3000 tsan:2400)
if [ $list = 1 ]; then printf '%s\n' "${suites[@]%%:*}"; exit 0; fi
mkdir -p "$results"
rm -f "$results"/*.xml
failed=()
for entry in "${suites[@]}"; do
  name=${entry%%:*}
  if [ ${#only[@]} -gt 0 ] && [[ ! " ${only[*]} " == *" $name "* ]]; then continue; fi
  start=$(date +%s)
  echo "== suite $name (ceiling ${entry##*:} s)"
  export -f "suite_$name" cmake_tests sanitized python_tests
  export root jobs results markers
  if timeout --kill-after=20 "${entry##*:}" bash -uo pipefail -c "suite_$name"; then state=passed; else
    state="FAILED (exit $?)"; failed+=("$name"); fi
  echo "== suite $name $state in $(($(date +%s) - start)) s"
done
.venv/bin/python tests/closing_line.py "$results" "${failed[@]}"
