#!/bin/sh
# Makes .venv-notebook, with Jupyter and MkDocs beside the packages of a lock's
# environment; then tests `fit` in a real Jupyter kernel (`make check-notebook`)
# or executes the notebooks of docs/ and builds the site (`make docs`).
#
#   tools/notebook.sh check|docs ENVIRONMENT PYTHON
set -eu
cd "$(dirname "$0")/.."
task=$1
environment=$2
python=$3
beside=.venv-notebook

packages() {
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# What both have is what requirements.lock names, or it does not compile.
sh tools/install.sh "$beside" requirements-docs.lock "$python"
packages "$environment" > "$(packages "$beside")/locked.pth"
export PYTHONPATH="$PWD"
case $task in
  check)
    JUPYTER_PYTHON=$PWD/$beside/bin/python \
      "$environment/bin/python" -m pytest -k Notebook tests/training/fit_test.py
    ;;
  docs)
    "$beside/bin/python" -m tools.notebooks build/notebooks
    # Of the theme: it asks to move on to another program.
    NO_MKDOCS_2_WARNING=1 \
      "$beside/bin/python" -m mkdocs build --strict --quiet
    echo "The site is in build/site: open build/site/index.html"
    ;;
esac
