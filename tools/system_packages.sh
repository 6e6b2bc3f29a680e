#!/bin/sh
# Installs what the tests need from the system, if we may; otherwise says what to install.
missing=""
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v clang >/dev/null 2>&1 || missing="$missing clang"
command -v tcc >/dev/null 2>&1 || missing="$missing tcc"
python3 -c "import ensurepip" >/dev/null 2>&1 || missing="$missing python3-venv"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing:$missing"
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
else
    echo "please install:$missing   (apt-get install$missing); tests that need a missing compiler are skipped" >&2
fi
command -v cc >/dev/null 2>&1 || { echo "no C compiler found: smidgen cannot be built" >&2; exit 1; }
