"""What is run on a host to look at it, to start our agents there, and to remove every trace of them.

POSIX sh and what every host has. What is printed is `name=value`, a line each.
"""

import shlex
from collections.abc import Sequence
from typing import Final

LOGIN: Final = """\
echo "uid=$(id -u)"
echo "system=$(uname -s)"
echo "machine=$(uname -m)"
echo "home=$HOME"
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then echo sudo=1; fi
if [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; then echo systemd=1; fi
for program in tar crontab; do
  if command -v "$program" >/dev/null 2>&1; then echo "$program=1"; fi
done
"""
"""Who we are there, and what there is."""

LOOK: Final = """\
base=$1
there=$base
while [ ! -d "$there" ]; do there=$(dirname "$there"); done
echo "there=$there"
if [ -w "$there" ] && [ -x "$there" ]; then echo writable=1; fi
set -- $(df -Pk "$there" | tail -n 1)
while [ $# -gt 0 ]; do case $1 in *%) break ;; esac; free=$1; shift; done
echo "free_kb=$free"
[ -f "$base/owner" ] && echo "owner=$(cat "$base/owner")"
[ -f "$base/current" ] && echo "current=$(cat "$base/current")"
for tree in "$base"/bundle/*/bundle.json; do
  if [ -f "$tree" ]; then tree=${tree%/bundle.json}; echo "tree=${tree##*/}"; fi
done
for layer in "$base"/bundle/layers/*/; do
  if [ -d "$layer" ]; then layer=${layer%/}; echo "layer=${layer##*/}"; fi
done
pid=$(cat "$base/shim/pid" 2>/dev/null)
if [ -n "$pid" ] && grep -qF "$base/shim" "/proc/$pid/cmdline" 2>/dev/null; then echo "pid=$pid"; fi
exit 0
"""
"""What lies where our agents belong. $1: their directory. A shim is known by the home that it was started with: after a
reboot its number may be that of another one."""

START: Final = """\
#!/bin/sh
# Starts the agent of Stoker on this host, unless it runs. Written anew whenever it is installed.
base={base}
pid=$(cat "$base/shim/pid" 2>/dev/null)
if [ -n "$pid" ] && grep -qF "$base/shim" "/proc/$pid/cmdline" 2>/dev/null; then exit 0; fi
cd / || exit 1
umask 077
{command} </dev/null >>"$base/shim.log" 2>&1 &
"""

UNIT: Final = """\
[Unit]
Description=Stoker's agent on this host
After=network.target docker.service

[Service]
ExecStart={command}
WorkingDirectory=/
UMask=0077
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""
"""Only the agent is ended with it: what runs goes on, and the next one finds it."""

_STOP: Final = """\
shim() {
  pid=$(cat "$base/shim/pid" 2>/dev/null || true)
  [ -n "$pid" ] && grep -qF "$base/shim" "/proc/$pid/cmdline" 2>/dev/null
}
rest() {
  sleep 0.1 2>/dev/null || sleep 1
  tries=$((tries + 1))
}
stop() {
  tries=0
  if shim; then
    kill "$pid" 2>/dev/null || true
    while shim && [ "$tries" -lt 100 ]; do rest; done
    if shim; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  return 0
}
"""
"""One that is dead and not buried yet has no command line."""

INSTALL: Final = (
    """\
set -e
base=$1 digest=$2 owner=$3 systemd=$4 start=$5 unit=$6 door=$7
umask 022
mkdir -p "$base"
chmod 711 "$base"
"""
    + _STOP
    + """\
prune() {
  for tree in "$base"/bundle/*/ "$base"/bundle/.[!.]*/; do
    [ -d "$tree" ] || continue
    tree=${tree%/}
    if [ "${tree##*/}" != "$digest" ] && [ "${tree##*/}" != layers ]; then
      used=
      for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in "$tree"/*) used=1; break ;; esac
      done
      # In a container it has another path.
      if grep -qs "/bundle/${tree##*/} " /proc/[0-9]*/mountinfo; then used=1; fi
      [ -n "$used" ] || rm -rf "$tree"
    fi
  done
  return 0
}
before=$(cat "$base/current" 2>/dev/null || true)
if [ "$before" != "$digest" ]; then
  if [ "$systemd" = 1 ]; then systemctl stop stoker-host 2>/dev/null || true; fi
  stop
fi
# A removal that was cut off may end beside us. What it took away is made so that others may pass, or not at all.
[ -d "$base/shim" ] || { mkdir -p "$base/shim"; chmod 700 "$base/shim"; }
umask 077
printf '%s\\n' "$owner" >"$base/owner"
printf '%s\\n' "$door" >"$base/shim/door"
printf '%s' "$start" >"$base/.start"
chmod 700 "$base/.start"
mv "$base/.start" "$base/start"
if [ "$systemd" = 1 ]; then
  printf '%s' "$unit" >/etc/systemd/system/stoker-host.service
  chmod 644 /etc/systemd/system/stoker-host.service
  systemctl daemon-reload
  systemctl enable --now stoker-host 2>&1
  echo kept=systemd
elif command -v crontab >/dev/null 2>&1; then
  if { crontab -l 2>/dev/null | grep -vF "$base/start" || true
    printf '@reboot %s\\n* * * * * %s\\n' "$base/start" "$base/start"; } | crontab - 2>/dev/null; then
    echo kept=cron
  fi
fi
if [ "$systemd" != 1 ]; then "$base/start"; fi
tries=0
while [ "$tries" -lt 150 ]; do
  if shim && [ -S "$(cat "$base/shim/address" 2>/dev/null)" ]; then
    printf '%s\\n' "$digest" >"$base/current"
    echo "address=$(cat "$base/shim/address")"
    echo "token=$(cat "$base/shim/token")"
    prune
    exit 0
  fi
  rest
done
tail -n 5 "$base/shim.log" >&2
exit 1
"""
)
"""Starts the agents from the tree $2, which is there, instead of those that run from another, and removes the trees
from which nothing runs. $3: whose they are; $5: what starts them; $6: the same for systemd; $7: who may reach them."""

REMOVE: Final = (
    """\
base=$1
"""
    + _STOP
    + """\
if grep -q " $base/" /proc/mounts 2>/dev/null; then
  echo "something is mounted below $base" >&2
  exit 1
fi
if [ -f /etc/systemd/system/stoker-host.service ] && [ -w /etc/systemd/system/stoker-host.service ]; then
  systemctl disable --now stoker-host >/dev/null 2>&1
  rm -f /etc/systemd/system/stoker-host.service
  systemctl daemon-reload >/dev/null 2>&1
fi
if command -v crontab >/dev/null 2>&1; then
  table=$(crontab -l 2>/dev/null)
  case $table in *"$base/start"*)
    rest=$(printf '%s\\n' "$table" | grep -vF "$base/start")
    if [ -n "$rest" ]; then printf '%s\\n' "$rest" | crontab -; else crontab -r; fi ;;
  esac
fi
stop
for signal in TERM KILL; do
  left=
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    case $(readlink "$process/exe" 2>/dev/null)/$(readlink "$process/cwd" 2>/dev/null)/ in
      "$base"/*|*/"$base"/*) kill -$signal "$pid" 2>/dev/null; left=1 ;;
    esac
  done
  [ -z "$left" ] || sleep 1
done
rm -rf "$base" || exit 1
rmdir "$(dirname "$base")" 2>/dev/null
exit 0
"""
)
"""Removes all that is ours."""


def read(told: str) -> dict[str, str]:
    """The last of each name."""
    return {name: value for name, _, value in (line.partition("=") for line in told.splitlines())}


def every(told: str, name: str) -> list[str]:
    return [line.removeprefix(f"{name}=") for line in told.splitlines() if line.startswith(f"{name}=")]


def quoted(words: Sequence[str]) -> str:
    return shlex.join(words)
