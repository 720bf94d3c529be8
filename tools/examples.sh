#!/bin/sh
# Runs the examples for other tools, examples/<tool>, each in the environment of
# its tool with our wheel beside it, and nothing of the checkout: `make
# check-examples`.
#
#   tools/examples.sh ENVIRONMENT PYTHON
set -eu
cd "$(dirname "$0")/.."
environment=$1
python=$2
tools='flower pfl'

export PIP_DISABLE_PIP_VERSION_CHECK=1
# shellcheck disable=SC2086 # One word for each.
sh benchmarks/install_peers.sh "$python" $tools
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
sh tools/wheel.sh "$environment" "$built"
for tool in $tools; do
  beside=.venv-peers/$tool/bin/python
  "$beside" -m pip uninstall --quiet --yes tvdp_tf 2>/dev/null
  # Without an index: what the core needs must be there.
  "$beside" -m pip install --quiet --no-index "$built"/*.whl
done
PEERS=$PWD/.venv-peers "$environment/bin/python" -m pytest -k OtherTools \
  tests/examples
