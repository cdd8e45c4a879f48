#!/usr/bin/env bash
# Formatting and static checks. clang-tidy looks at files changed since NEURALDBG_TIDY_BASE (default: the parent of HEAD)
# and needs the compile commands of a release build; without them it says so and fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
failed=0
step() { local name=$1; shift; if "$@"; then echo "lint: $name ok"; else echo "lint: $name FAILED"; failed=1; fi; }
sources() { git ls-files '*.cc' '*.h'; }

step 'ruff check' .venv/bin/ruff check -q .
step 'ruff format' .venv/bin/ruff format -q --check .
step 'clang-format' sh -c "git ls-files '*.cc' '*.h' | xargs .venv/bin/clang-format --dry-run -Werror"
step 'buf lint' .venv/bin/buf lint proto
step 'shell syntax' sh -c "for f in run .ci/run \$(git ls-files '*.sh'); do bash -n \$f || exit 1; done"

base=${NEURALDBG_TIDY_BASE:-HEAD~1}
if git rev-parse -q --verify "$base" >/dev/null; then
  mapfile -t changed < <(git diff --name-only --diff-filter=AM "$base" -- 'shared/*.cc' 'agent/src/*.cc' 'daemon/*.cc')
  if [ ${#changed[@]} -gt 0 ]; then
    if [ -f build/release/compile_commands.json ]; then
      # clang knows no -mtls-dialect, which g++ is given for shared/.
      mkdir -p build/lint
      sed 's/ -mtls-dialect=gnu2//' build/release/compile_commands.json >build/lint/compile_commands.json
      step "clang-tidy (${#changed[@]} files)" clang-tidy-16 -quiet -p build/lint "${changed[@]}"
    else
      echo 'lint: clang-tidy needs build/release/compile_commands.json: run ./run test or ./run build first'; failed=1
    fi
  fi
fi
exit $failed
