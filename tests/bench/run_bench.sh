#!/usr/bin/env bash
# All benchmarks, one after the other because they share the machine's cores; each writes its section of
# docs/evaluation.md. Called by ./run bench after the release build. Arguments go to the step-time comparison.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=$PWD OMP_NUM_THREADS=1
cmake --preset release -DNEURALDBG_BUILD_TESTS=ON >/dev/null
cmake --build build/release -j "${NEURALDBG_JOBS:-$(nproc)}" --target ring_benchmark kernel_benchmark >/dev/null
.venv/bin/python -m tests.bench.native native Ring build/release/tests/bench/ring_benchmark
.venv/bin/python -m tests.bench.native kernel "Statistics of a tensor" build/release/tests/bench/kernel_benchmark
.venv/bin/python -m tests.bench.event_latency
.venv/bin/python -m tests.bench.idle_daemon
.venv/bin/python -m tests.bench.first_step
.venv/bin/python -m tests.bench.step_time "$@"
