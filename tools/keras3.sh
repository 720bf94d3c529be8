#!/bin/sh
# Tests local training, mechanisms and the process without TFF under Keras 3 and
# the TensorFlow of requirements-keras3.lock, on Python 3.12, in .venv-keras3:
# `make check-keras3`.
#
#   tools/keras3.sh [ARGUMENT OF PYTEST]...
set -eu
cd "$(dirname "$0")/.."
beside=.venv-keras3

python=
for candidate in python3.12 "$HOME/.pyenv/versions/3.12".*/bin/python; do
  if "$candidate" -c '' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "keras3: no Python 3.12 found" >&2
  exit 1
fi

sh tools/install.sh "$beside" requirements-keras3.lock "$python"
# Newer TensorFlow computes with oneDNN outside of its memory: docs/KERAS3.md.
export PYTHONPATH="$PWD" TF_CPP_MIN_LOG_LEVEL=3
export TF_ENABLE_ONEDNN_OPTS=0
"$beside/bin/python" - << 'END'
import importlib.util
import sys

import tensorflow as tf

assert tf.keras.__version__.startswith('3.'), tf.keras.__version__
assert importlib.util.find_spec('tensorflow_federated') is None
print(
  f'keras3: Python {sys.version.split()[0]}, TensorFlow {tf.__version__}, Keras'
  f' {tf.keras.__version__}, no TFF'
)
END
"$beside/bin/python" examples/without_tff.py
# What trains whole runs, or looks into a graph of TFF's.
without='learning/features learning/on_disk mechanisms/distributed
mechanisms/own_mechanism'
skipped=
for name in $without; do
  skipped="$skipped --ignore=tests/${name}_test.py"
done
echo "keras3: skips the tests of $without, which need TFF"
# shellcheck disable=SC2086 # One word for each.
"$beside/bin/python" -m pytest -q -p no:cacheprovider tests/learning \
  tests/mechanisms tests/training/plain_process_test.py $skipped "$@"
# Exports of Keras 2, where there is an environment that writes them.
if [ -x .venv/bin/python ]; then
  .venv/bin/python -m pytest -q -p no:cacheprovider -k keras_3 \
    tests/training/export_test.py
fi
