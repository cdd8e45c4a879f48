#!/usr/bin/env bash
# All benchmarks, one after the other because they share the machine's cores; each writes its section of
# docs/evaluation.md. Called by ./run bench after the release build. Arguments go to the step-time comparison.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=$PWD OMP_NUM_THREADS=1
programs=(ring_benchmark)
cmake --preset release -DNEURALDBG_BUILD_TESTS=ON >/dev/null
cmake --build build/release -j "${NEURALDBG_JOBS:-$(nproc)}" --target "${programs[@]}" >/dev/null
.venv/bin/python -m tests.bench.native "${programs[@]/#/build/release/tests/bench/}"
.venv/bin/python -m tests.bench.event_latency
.venv/bin/python -m tests.bench.idle_daemon
.venv/bin/python -m tests.bench.step_time "$@"
