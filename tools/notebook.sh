#!/bin/sh
# Tests `fit` in a real Jupyter kernel, in an environment of its own beside that
# of a lock: `make check-notebook`.
#
#   tools/notebook.sh ENVIRONMENT LOCK PYTHON
set -eu
cd "$(dirname "$0")/.."
environment=$1
lock=$2
python=$3
beside=.venv-notebook

packages() {
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "$beside"
"$python" -m venv "$beside"
# What both have must be what the lock names. Later releases of IPython need a
# typing_extensions that TensorFlow 2.14 does not run with.
sed -n 's/^\([a-z0-9][^ ]*==[^ ;]*\).*/\1/p' "$lock" > "$beside/lock.txt"
"$beside/bin/pip" install --quiet --constraint "$beside/lock.txt" \
  ipykernel 'ipython<8.15' nbclient pandas
packages "$environment" > "$(packages "$beside")/locked.pth"
JUPYTER_PYTHON=$PWD/$beside/bin/python PYTHONPATH=$PWD \
  "$environment/bin/python" -m pytest -k Notebook tests/training/fit_test.py
