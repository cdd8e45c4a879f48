#!/usr/bin/env bash
# Runs every fuzz target for an equal share of the time, one after the other, from the committed corpus and what earlier runs
# found (build/fuzz/found). An input that breaks something is left in build/fuzz/crashes and fails the run; with its fix it
# belongs into tests/fuzz/corpus. Called by ./run fuzz.
#   [SECONDS]  for all targets together (default 60)
#   --merge    afterwards keep in tests/fuzz/corpus the fewest inputs that cover as much, and its seeds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
merge=0
seconds=60
for argument in "$@"; do
  case $argument in
    --merge) merge=1 ;;
    *[!0-9]* | '') echo 'usage: ./run fuzz [SECONDS] [--merge]' >&2; exit 2 ;;
    *) seconds=$argument ;;
  esac
done
targets=(header lanes manifest import)
cmake --preset fuzz -DNEURALDBG_BUILD_DAEMON=OFF -DNEURALDBG_BUILD_TESTS=ON >/dev/null
cmake --build build/fuzz -j "${NEURALDBG_JOBS:-$(nproc)}" --target fuzzers >/dev/null
crashes=$PWD/build/fuzz/crashes
mkdir -p "$crashes"
failed=0
for target in "${targets[@]}"; do
  found=build/fuzz/found/$target
  mkdir -p "$found"
  echo "== fuzz $target, $((seconds / ${#targets[@]})) s"
  # The exit status alone decides; the last lines of the log hold the figures.
  if ! "build/fuzz/tests/fuzz/${target}_fuzzer" -max_total_time=$((seconds / ${#targets[@]})) -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$crashes/$target-" "$found" "tests/fuzz/corpus/$target" \
    >"build/fuzz/$target.log" 2>&1; then
    failed=1
    tail -n 40 "build/fuzz/$target.log"
  fi
  grep -E '^stat::number_of_executed_units|DONE' "build/fuzz/$target.log" || true
  if [ $merge = 1 ]; then
    kept=build/fuzz/kept/$target
    rm -rf "$kept" && mkdir -p "$kept"
    "build/fuzz/tests/fuzz/${target}_fuzzer" -set_cover_merge=1 -max_len=4096 "$kept" "tests/fuzz/corpus/$target" "$found" >/dev/null 2>&1
    find "tests/fuzz/corpus/$target" -type f ! -name 'seed*' -delete
    cp "$kept"/* "tests/fuzz/corpus/$target/"
  fi
done
exit $failed
