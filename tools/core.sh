#!/bin/sh
# Builds the wheel and tests `tvdp_tf.privacy` of it, without TensorFlow, on every
# Python from 3.10 to 3.14 that is found: `make core`.
#
#   tools/core.sh ENVIRONMENT [dp-accounting==VERSION]
#
# ENVIRONMENT is that of a lock: it has what the wheel is built with.
set -eu
cd "$(dirname "$0")/.."
environment=$(cd "$1" && pwd)
accounting=${2:-}
beside=$PWD/.venv-core

# The interpreter of a version, from PATH or pyenv, or nothing.
find_python() {
  for candidate in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
rm -rf "$beside"
mkdir -p "$beside/checkout"
"$environment/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$beside" .
# The tests without the package beside them: what is tested is the wheel.
cp -R tests setup.cfg "$beside/checkout"
# Not what takes minutes: crashes of the ledger, and comparisons of accountants
# with others. `make test` has them; `vectors_test` has the numbers of them all.
names='accounting calibration chained_file mixture pld selection spending'
skipped='--ignore-glob=*/ledger_*'
for name in $names; do
  skipped="$skipped --ignore=tests/privacy/${name}_test.py"
done
echo "core: skips the tests of the ledger, $names"
tested=
for version in 3.10 3.11 3.12 3.13 3.14; do
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    echo "core: no Python $version found"
    continue
  fi
  "$python" -m venv "$beside/$version"
  # shellcheck disable=SC2086 # Nothing, where no version is asked for.
  "$beside/$version/bin/pip" install --quiet "$beside"/*.whl $accounting \
    cryptography hypothesis mpmath pytest pytest-timeout
  # shellcheck disable=SC2086 # One word for each.
  (cd "$beside/checkout" && "$beside/$version/bin/python" -m pytest -q -rs \
    --durations=0 --durations-min=60 tests/privacy $skipped)
  tested="$tested $version"
done
rm -rf build ./*.egg-info
echo "core: tested on Python$tested"
[ -n "$tested" ]
