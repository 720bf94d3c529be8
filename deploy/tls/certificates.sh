#!/bin/sh
# Makes a certification authority of one's own, and a certificate for each side.
#
#   certificates.sh FOLDER NAME...
#
# NAMEs are the workers' host names or addresses, as the trainer writes them;
# '*.workers' is one too. FOLDER gets worker/ (for haproxy.cfg), trainer/ (for
# grpc.ssl_channel_credentials), and ca/, whose key signs more of them: keep it
# off both machines. Who wants to replace one certificate keeps FOLDER and runs
# this again.
set -eu
umask 077

if [ $# -lt 2 ]; then
  echo "usage: $0 FOLDER NAME..." >&2
  exit 2
fi
folder=$1
shift
mkdir -p "$folder/ca" "$folder/worker" "$folder/trainer"
cd "$folder"
days=365
key='ec -pkeyopt ec_paramgen_curve:P-256'

if [ ! -e ca/ca.crt ]; then
  # shellcheck disable=SC2086 # Several words.
  openssl req -x509 -newkey $key -noenc -days 3650 -subj '/CN=tvdp_tf CA' \
    -addext 'basicConstraints=critical,CA:TRUE' \
    -addext 'keyUsage=critical,keyCertSign' \
    -keyout ca/ca.key -out ca/ca.crt 2>/dev/null
fi

# sign SIDE USAGE NAMES: makes SIDE/tls.crt and SIDE/tls.key.
sign() {
  # shellcheck disable=SC2086 # Several words.
  openssl req -x509 -newkey $key -noenc -days $days -subj "/CN=tvdp_tf $1" \
    -CA ca/ca.crt -CAkey ca/ca.key \
    -addext 'basicConstraints=critical,CA:FALSE' \
    -addext 'keyUsage=critical,digitalSignature' \
    -addext "extendedKeyUsage=$2" \
    -addext "subjectAltName=$3" \
    -keyout "$1/tls.key" -out "$1/tls.crt" 2>/dev/null
  cp ca/ca.crt "$1/ca.crt"
}

names=
for name in "$@"; do
  case $name in
    *:*) kind=IP ;;
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
  esac
  names="$names${names:+,}$kind:$name"
done
sign worker serverAuth "$names"
sign trainer clientAuth DNS:trainer
