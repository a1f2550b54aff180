#!/bin/sh
# What the agent's init container runs, as /usr/bin/install.sh, with the host's root folder mounted at /host.
exec aliquot install-shim --host-root "${HOST_ROOT:-/host}" "$@"
