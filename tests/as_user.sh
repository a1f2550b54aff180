#!/usr/bin/env bash
# `make test-as-user`: as root, run these tests again as an ordinary user, in a copy of the tree that is that user's.
# The copy has this virtual environment too, so nothing is fetched. Prints why where it cannot be done.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift

if [ "$(id -u)" != 0 ]; then
  echo "make test-as-user: make test has just run as the ordinary user $(id -un)"
  exit
fi
# The first ordinary user of this machine, or nobody.
user=$(getent passwd | awk -F: '$3 >= 1000 && $3 < 60000 {print $3 ":" $4; exit}')
user=${user:-65534:65534}
copy=$(mktemp -d /tmp/aliquot-as-user.XXXXXX)
trap 'rm -rf "$copy"' EXIT
as_user() {
  setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
    env -u XDG_RUNTIME_DIR -u XDG_CACHE_HOME -u XDG_STATE_HOME HOME="$copy/home" "$@"
}

chmod 755 "$copy"
mkdir "$copy/home" "$copy/tree"
tar --create --exclude=./out --exclude=./dist --exclude=node_modules --exclude='./.*_cache' . | tar --extract -C "$copy/tree"
chown -R "$user" "$copy"
cd "$copy/tree"
if ! as_user "$venv/bin/python" -c '' 2>/dev/null; then
  echo "make test-as-user: skipped, because user ${user%:*} cannot run $(readlink -f "$venv/bin/python"):"
  echo "  it is in a folder of root's. make PYTHON=/usr/bin/python3 makes a virtual environment that every user can run"
  exit
fi
# The copy of the environment still leads to the tree it was made in.
as_user "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
as_user "$venv/bin/python" -m pytest "$@"
