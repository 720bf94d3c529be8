#!/bin/sh
# Makes environments of other tools, .venv-peers/<name>, each with exactly what
# benchmarks/peers/<name>/requirements.txt names: `make peers`.
#
#   benchmarks/install_peers.sh PYTHON [NAME]...
#
# Without a name it makes those of binaries/benchmark.py.
# The stamp in an environment, written last, says that it is complete.
set -eu
cd "$(dirname "$0")/.."
python=$1
shift
# PyTorch's own index has builds without CUDA, which the general one lacks.
pytorch_index=https://download.pytorch.org/whl/cpu

export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONPATH PYTHONHOME

[ $# -gt 0 ] || set -- flower jax opacus pfl pytorch
for name in "$@"; do
  requirements=benchmarks/peers/$name/requirements.txt
  environment=.venv-peers/$name
  stamp=$environment/.installed-requirements
  if cmp -s "$requirements" "$stamp"; then
    continue
  fi
  echo "Installing $(grep -c == "$requirements") packages into $environment"
  rm -rf "$environment"
  "$python" -m venv "$environment"
  install() {
    "$environment/bin/python" -m pip install -qq --no-deps "$@"
  }
  torch=$(grep '^torch==' "$requirements" || true)
  if [ -n "$torch" ]; then
    install "$torch" 2>/dev/null || install --index-url "$pytorch_index" "$torch"
  fi
  install -r "$requirements"
  cp "$requirements" "$stamp"
done
