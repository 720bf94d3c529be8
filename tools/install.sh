#!/bin/sh
# Makes a virtual environment with exactly what a lock names, and the project
# in it: `make install`.
#
#   tools/install.sh ENVIRONMENT LOCK PYTHON
#
# Nothing is resolved: each file is pinned and checked against its hash. Two
# stamps, written last, say what is complete; without its stamp, or when what it
# was made from differs by a byte, a step is done again.
set -eu
cd "$(dirname "$0")/.."
environment=$1
lock=$2
python=$3
locked=$environment/.installed-lock
project=$environment/.installed-project

# install [ARGUMENT]...: pip, of the environment or, where Python comes without
# ensurepip (Debian without python3-venv), of the machine.
install() {
  if [ -e "$environment/has-no-pip" ]; then
    "$python" -m pip --python "$environment/bin/python" install "$@"
  else
    "$environment/bin/python" -m pip install "$@"
  fi
}

# The project's key: where it lies and what its metadata are made from.
project_key() {
  pwd
  cat setup.cfg pyproject.toml tvdp_tf/__init__.py
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONPATH PYTHONHOME

if ! cmp -s "$lock" "$locked" ||
   ! "$environment/bin/python" -c '' 2>/dev/null; then
  count=$(grep -c '^[a-z0-9].*==' "$lock")
  echo "Installing $count packages into $environment (once, some minutes)"
  rm -rf "$environment"
  if ! "$python" -m venv "$environment" >/dev/null 2>&1; then
    rm -rf "$environment"
    "$python" -m venv --without-pip "$environment"
    touch "$environment/has-no-pip"
  fi
  # One package comes as source. It is built by the locked setuptools, and not
  # by whatever version pip would fetch for the purpose.
  build_tools=$environment/build-tools.lock
  awk '/^[a-z0-9]/ { keep = /^(setuptools|wheel)==/ } keep' "$lock" \
    > "$build_tools"
  install -qq --no-deps --require-hashes --only-binary :all: -r "$build_tools"
  install -qq --no-compile --no-deps --require-hashes --no-build-isolation \
    -r "$lock"
  # On all cores, where pip takes one, and without what nobody imports: tests,
  # TensorFlow Probability for JAX. As for pip, what does not compile (templates)
  # is no error.
  "$environment/bin/python" -m compileall -qq -j 0 \
    -x '/site-packages/.*/(tests|substrates)/' \
    "$environment"/lib/python3*/site-packages || true
  cp "$lock" "$environment/lock"
  mv "$environment/lock" "$locked"
fi

if ! project_key | cmp -s - "$project"; then
  install -qq --no-deps --no-build-isolation --editable .
  project_key > "$environment/project-key"
  mv "$environment/project-key" "$project"
fi
