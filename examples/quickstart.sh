#!/bin/sh
# What a first look at Stoker is: a server of its own in a temporary home, one task, its log, and nothing left behind.
set -eu
stoker=${STOKER:-stoker}
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
STOKER_HOME=$(mktemp -d "${TMPDIR:-/tmp}/stoker-quickstart.XXXXXX")
export STOKER_HOME
unset STOKER_URL STOKER_TOKEN STOKER_PROJECT STOKER_DATABASE_URL 2>/dev/null || true
# As root the database has an account of its own, which has to reach its files.
[ "$(id -u)" -ne 0 ] || chmod 711 "$STOKER_HOME"

leave() {
    status=$?
    "$stoker" down --force >/dev/null 2>&1 || true
    rm -rf "$STOKER_HOME"
    exit "$status"
}
trap leave EXIT
trap 'exit 130' INT TERM

say() {
    printf '\n$ %s\n' "stoker $*"
    "$stoker" "$@"
}

say up -d --port 0
say apply -y -f "$here/hello.yaml"
say ps -a
say down
printf '\nThat was all. Next: stoker up -d, then stoker run -- echo hello.\n'
