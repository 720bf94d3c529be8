#!/bin/sh
# Builds the package and tests `tvdp_tf.privacy` of its wheel, without TensorFlow,
# on every Python from 3.10 to 3.14 that is found: `make core`.
#
#   tools/core.sh ENVIRONMENT [dp-accounting==VERSION]
#
#   tools/core.sh --find VERSION      says where it is, or fails
#
#   CORE_PYTHONS='3.10 3.13'  versions instead of all of them; each must be there
#
# ENVIRONMENT is that of a lock: it has what the wheel is built with.
set -eu
cd "$(dirname "$0")/.."

# The interpreter of a version, from PATH or pyenv, or nothing.
find_python() {
  for candidate in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

if [ "$1" = --find ]; then
  find_python "$2"
  exit
fi

environment=$(cd "$1" && pwd)
accounting=${2:-}
beside=$PWD/.venv-core
twine=7.0.0

export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
rm -rf "$beside"
mkdir -p "$beside/checkout"
sh tools/wheel.sh "$environment" "$beside"
"$environment/bin/python" -m venv "$beside/twine"
"$beside/twine/bin/pip" install --quiet "twine==$twine"
"$beside/twine/bin/twine" check --strict "$beside"/*.whl "$beside"/*.tar.gz

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
for version in ${CORE_PYTHONS:-3.10 3.11 3.12 3.13 3.14}; do
  if ! python=$(find_python "$version"); then
    echo "core: no Python $version found"
    [ -z "${CORE_PYTHONS:-}" ]
    continue
  fi
  started=$(date +%s)
  "$python" -m venv "$beside/$version"
  # shellcheck disable=SC2086 # Nothing, where no version is asked for.
  "$beside/$version/bin/pip" install --quiet "$beside"/*.whl $accounting \
    cryptography hypothesis mpmath pytest pytest-timeout pytest-xdist
  installed=$(date +%s)
  # shellcheck disable=SC2086 # One word for each.
  (cd "$beside/checkout" && "$beside/$version/bin/python" -m pytest -q -rs \
    --numprocesses=auto --maxprocesses=4 --dist=worksteal \
    --durations=0 --durations-min=60 tests/privacy $skipped)
  echo "core: Python $version, $((installed - started)) s to install," \
    "$(($(date +%s) - installed)) s to test"
  tested="$tested $version"
done
echo "core: tested on Python$tested"
[ -n "$tested" ]
