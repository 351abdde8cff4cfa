#!/usr/bin/env bash
# The cost model against real tensors: makes an environment with torch on a CPU and runs the tests marked `crosscheck`.
# Everyday tests need no torch, so it lives in an environment of its own; CROSSCHECK_VENV names one to use instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=.ci/lib.sh
source .ci/lib.sh

venv=${CROSSCHECK_VENV:-$PWD/.venv-crosscheck}
# 3.11 is the oldest Python we support; this torch resolves to a build without CUDA there.
base=${CROSSCHECK_BASE_PYTHON:-$(command -v python3.11 || command -v python3)}

if ! "$venv/bin/python" -c 'import torch, shardwise, pytest' >/dev/null 2>&1; then
  ensure_venv_module
  step "Environment with torch on a CPU"
  "$base" -m venv "$venv"
  # What the tests import: shardwise with its dependencies, torch and pytest.
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 pytest --editable .
fi

step "Cross-checks against torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)')"
# The tensors are small: more threads only wait for each other.
OMP_NUM_THREADS=1 "$venv/bin/pytest" -m crosscheck tests/crosscheck "$@"
