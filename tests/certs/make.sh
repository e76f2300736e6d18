#!/usr/bin/env bash
# Makes the certificates beside this file, for tests of TLS: once, valid for 100 years. They protect
# nothing. Tests of the whole program make theirs by `kvstore certs`.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/config" <<END
[ca]
default_ca=all
[all]
database=$work/index
new_certs_dir=$work
rand_serial=yes
default_md=sha256
policy=any
unique_subject=no
[any]
commonName=supplied
END
touch "$work/index"

sign() { # key, common name, certificate, first day, last day, extensions; then how to sign
    local key=$1 name=$2 file=$3 first=$4 last=$5 extensions=$6
    shift 6
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$key" 2>/dev/null
    openssl req -new -key "$key" -subj "/CN=$name" -out "$work/request"
    printf '%b' "$extensions" >"$work/extensions"
    openssl ca -batch -notext -config "$work/config" -extfile "$work/extensions" -in "$work/request" \
        -out "$file" -startdate "$first" -enddate "$last" "$@" 2>/dev/null
}

authority() { # file, name
    sign "$work/$1.key" "$2" "$1.pem" 20200101000000Z 21260101000000Z \
        'basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=keyCertSign,cRLSign\n' \
        -selfsign -keyfile "$work/$1.key"
}

certificate() { # file, common name, authority, last day, usages, names if any
    local extensions="basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=$5\n"
    if [ $# -gt 5 ]; then extensions+="subjectAltName=$6\n"; fi
    sign "$1.key" "$2" "$1.pem" 20200101000000Z "$4" "$extensions" \
        -cert "$3.pem" -keyfile "$work/$3.key"
}

good=21260101000000Z
expired=20200102000000Z
here=DNS:localhost,IP:127.0.0.1,IP:::1
rm -f ./*.pem ./*.key
authority ca "authority of tests"
authority other-ca "another authority"
certificate scheduler scheduler ca $good clientAuth,serverAuth $here
certificate server server.1 ca $good clientAuth,serverAuth $here
certificate elsewhere server.1 ca $good clientAuth,serverAuth IP:192.0.2.1
certificate expired-server server.1 ca $expired clientAuth,serverAuth $here
certificate any-server server ca $good clientAuth,serverAuth $here
certificate worker worker.3 ca $good clientAuth
certificate any-reader reader ca $good clientAuth
certificate any-worker worker ca $good clientAuth,serverAuth $here
certificate expired-worker worker.3 ca $expired clientAuth
certificate listener-only worker.3 ca $good serverAuth
certificate stranger worker.3 other-ca $good clientAuth,serverAuth $here
certificate nameless mallory ca $good clientAuth,serverAuth $here
