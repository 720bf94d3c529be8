#!/bin/sh
# Tests `distributed` through Flower's SecAgg+, in an environment of its own
# beside that of a lock: `make check-secagg`.
#
#   tools/secagg.sh ENVIRONMENT PYTHON
set -eu
cd "$(dirname "$0")/.."
environment=$1
python=$2
beside=.venv-secagg

packages() {
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "$beside"
"$python" -m venv "$beside"
"$beside/bin/pip" install --quiet --no-deps -r tools/secagg_requirements.txt
# What Flower does not bring, TensorFlow and TFF among it, comes from the lock.
packages "$environment" > "$(packages "$beside")/locked.pth"
PYTHONPATH=$PWD "$beside/bin/python" -m pytest --show-capture=no \
  tests/tools/secagg_test.py
