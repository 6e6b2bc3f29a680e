#!/bin/sh
# Installs what the tests need from the system, if we may; otherwise says what to install.
missing="" browser="" # the browser opens the page that `smidgen plan --html` writes
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
if [ "$1" != demo ]; then # which needs one compiler, whatever it is
    command -v clang >/dev/null 2>&1 || missing="$missing clang"
    command -v tcc >/dev/null 2>&1 || missing="$missing tcc"
    command -v qemu-aarch64-static >/dev/null 2>&1 || missing="$missing qemu-user-static" # runs Linux binaries of ARM and RISC-V
    # Firmware for microcontrollers is built and emulated.
    command -v arm-none-eabi-gcc >/dev/null 2>&1 || missing="$missing gcc-arm-none-eabi libnewlib-arm-none-eabi"
    command -v qemu-system-arm >/dev/null 2>&1 || missing="$missing qemu-system-arm"
    command -v ccache >/dev/null 2>&1 || missing="$missing ccache" # tests compile the same sources again and again
    command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
    { command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || browser="chromium chromium-driver fonts-dejavu-core"
fi
python3 -c "import ensurepip" >/dev/null 2>&1 || missing="$missing python3-venv"
[ -z "$missing$browser" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing:$missing $browser"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    [ -z "$missing" ] || apt-get install -y -qq $missing >/dev/null
    [ -z "$browser" ] || apt-get install -y -qq --no-install-recommends $browser >/dev/null
else
    echo "please install:$missing $browser   (apt-get install$missing $browser); tests that need what is missing are skipped" >&2
fi
command -v cc >/dev/null 2>&1 || { echo "no C compiler found: smidgen cannot be built" >&2; exit 1; }
