#!/bin/sh
# Builds the source distribution and, from nothing but that, the wheel.
#
#   tools/wheel.sh ENVIRONMENT FOLDER
#
# ENVIRONMENT is that of a lock: it has what they are built with.
set -eu
cd "$(dirname "$0")/.."
environment=$1
folder=$2

export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
mkdir -p "$folder"
"$environment/bin/python" -c 'import sys
from setuptools import build_meta
build_meta.build_sdist(sys.argv[1])' "$folder" > "$folder/sdist.log"
rm -rf ./*.egg-info
"$environment/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$folder" "$folder"/*.tar.gz
