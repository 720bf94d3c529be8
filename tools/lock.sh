#!/bin/sh
# Writes requirements.lock and requirements-gpu.lock, requirements-docs.lock,
# requirements-audit.lock and requirements-keras3.lock, from the short *.in,
# overrides.txt and excludes*.txt files: `make lock`.
#
#   tools/lock.sh PYTHON [FLAG OF uv pip compile]...
#
# Versions in the present locks are kept where they still fit; `--upgrade` takes
# the newest, `--upgrade-package NAME` the newest of one.
set -eu
cd "$(dirname "$0")/.."
python=$1
shift
environment=.venv-lock
uv_version=0.13.8

if ! "$environment/bin/uv" --version 2>/dev/null | grep -q "$uv_version"; then
  "$python" -m venv --clear "$environment"
  "$environment/bin/python" -m pip install -qq "uv==$uv_version"
fi

# resolve NAME PYTHON [FLAG]...: NAME.in -> NAME.lock. The wheel of TFF needs
# glibc 2.31. No configuration file or further index of this machine has a say.
resolve() {
  name=$1
  version=$2
  shift 2
  env -u UV_EXTRA_INDEX_URL -u UV_INDEX -u UV_FIND_LINKS \
    "$environment/bin/uv" pip compile --quiet --no-config \
    --python-version "$version" --python-platform x86_64-manylinux_2_31 \
    --generate-hashes --custom-compile-command 'make lock' \
    --output-file "$name.lock" "$@" "$name.in"
}

# compile NAME EXCLUDES [FLAG]...: beside TFF.
compile() {
  name=$1
  excludes=$2
  shift 2
  resolve "$name" 3.11 --overrides overrides.txt --excludes "$excludes" "$@"
}

# Two locks follow the first one in the versions of all that they share.
compile requirements excludes.txt "$@"
compile requirements-gpu excludes-gpu.txt --constraints requirements.lock "$@"
compile requirements-docs excludes.txt --constraints requirements.lock "$@"
compile requirements-audit excludes.txt "$@"
resolve requirements-keras3 3.12 "$@"
