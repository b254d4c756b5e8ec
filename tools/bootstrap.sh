#!/bin/sh
# Makes the checkout ready to run: system packages only where something is missing, a virtual environment in .venv, the C modules.
# Changes nothing else on the machine. Run by tools/demo and tools/test. `tools/bootstrap.sh test` adds what all stages of the tests
# need, `tools/bootstrap.sh run docker` an engine, compose, and what makes a base image without a registry. Where Docker cannot be had,
# it says so and goes on: the tests of containers are skipped then, loudly, and all others run.
set -eu
cd "$(dirname "$0")/.."
want=${1:-run}
containers=${2:-}

say() { printf '%s\n' "$*" >&2; }

python=
for p in python3 python3.13 python3.12 python3.11; do
    if command -v "$p" >/dev/null 2>&1 && "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$p
        break
    fi
done
# Of two interpreters of one version the distribution's, if nothing has to be installed for it: it is built with optimisation, those
# of version managers often are not, and the tests take a quarter longer. One that .venv was made with stays.
minor='import sys; print(*sys.version_info[:2])'
whole='import ensurepip, venv, os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))'
if [ -n "$python" ] && [ ! -e .venv/bin/python ] && [ -x /usr/bin/python3 ] && /usr/bin/python3 -c "$whole" 2>/dev/null &&
    [ "$(/usr/bin/python3 -c "$minor")" = "$("$python" -c "$minor")" ]; then
    python=/usr/bin/python3
elif [ -n "$python" ] && [ "$(.venv/bin/python -c "$minor" 2>/dev/null)" = "$("$python" -c "$minor")" ]; then
    python=.venv/bin/python
fi

# Whether .venv is that of these sources. What is ready for the tests is ready to run.
ready() {
    stamp=$( { "$python" -V; pwd; cat pyproject.toml setup.py tools/cmodules.py; find proto daemon tools -name '*.c' -o -name '*.h' | sort |
        grep -v -e '/_core\.c$' -e '/_datapath\.c$' -e '/_ipc\.c$' -e '/_load\.c$' -e '/_pcap\.c$' -e '/_vfs\.c$' | xargs cat; } | cksum)
    have=$(cat .venv/ready 2>/dev/null || :)
    [ "$have" = "$stamp test" ] || { [ "$want" != test ] && [ "$have" = "$stamp run" ]; }
}
# Also repairs one that was cut short while it was made, or moved with the checkout.
environment() {
    { .venv/bin/python -m pip --version && grep -F "$PWD/.venv" .venv/bin/activate; } >/dev/null 2>&1 || "$python" -m venv .venv
}
install_python() { .venv/bin/python -m pip install -qq --disable-pip-version-check "$@"; }
# The Python packages of the tests alone, which need nothing of the machine: while the package manager works. What fails here is done
# again later, and reported then.
early() {
    environment
    .venv/bin/python - >.venv/packages <<'END'
import re, tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras, todo, done = project["optional-dependencies"], ["dev"], set()
print(*project["dependencies"], "cffi>=1.16", sep="\n")
while todo:
    name = todo.pop()
    for each in extras[name]:
        if found := re.fullmatch(rf"{project['name']}\[(.*)\]", each):
            todo += {*found[1].split(",")} - done
            done |= {*found[1].split(",")}
        else:
            print(each)
END
    install_python --no-compile -r .venv/packages
}

missing=
wanted=
need() { missing="$missing $*"; }
want() { wanted="$wanted $*"; }
round=${ZENJUN_BOOTSTRAP_ROUND-0}
if [ -z "$python" ]; then
    # Where python3 is there but too old, as in Ubuntu 22.04, a newer one is packed beside it.
    if command -v python3 >/dev/null 2>&1; then need python3.11 python3.11-venv python3.11-dev; else need python3 python3-venv python3-dev; fi
fi
if [ -n "$python" ]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need "$(basename "$(readlink -f "$(command -v "$python")")")-venv"
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' 2>/dev/null ||
        need "$(basename "$(readlink -f "$(command -v "$python")")")-dev"
fi
command -v gcc >/dev/null 2>&1 || need gcc
[ -e /usr/include/stdlib.h ] || need libc6-dev
[ -e /usr/include/linux/if_packet.h ] || need linux-libc-dev
[ -e /usr/include/sqlite3ext.h ] || need libsqlite3-dev # the header only: the library comes with apsw
[ -e /usr/include/openssl/evp.h ] || need libssl-dev # 3.0 or later; the library, libcrypto, comes with python3
command -v nft >/dev/null 2>&1 || [ -x /usr/sbin/nft ] || need nftables
command -v nsenter >/dev/null 2>&1 || need util-linux
if [ "$want" = test ]; then
    # libFuzzer and the sanitizers' run-time library: Debian packs it apart from clang since version 14, by clang's version.
    if ! command -v clang >/dev/null 2>&1; then
        need clang
    else
        version=$(clang -dumpversion | cut -d. -f1)
        printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }\n' |
            clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null || need "libclang-rt-$version-dev"
    fi
    command -v tcpdump >/dev/null 2>&1 || [ -x /usr/sbin/tcpdump ] || need tcpdump
    command -v dig >/dev/null 2>&1 || need bind9-dnsutils # asks zenjun-directory's DNS
    command -v tmux >/dev/null 2>&1 || need tmux
    command -v spin >/dev/null 2>&1 || need spin # the formal model
    # The Debian package and its manual pages.
    command -v dh >/dev/null 2>&1 && command -v dpkg-buildpackage >/dev/null 2>&1 || need debhelper dpkg-dev
    command -v git >/dev/null 2>&1 || need git
    command -v groff >/dev/null 2>&1 || need groff-base
    command -v setpriv >/dev/null 2>&1 || need util-linux
    # libzenjun, which is checked with both compilers, as C++, and under valgrind.
    command -v make >/dev/null 2>&1 || need make
    command -v g++ >/dev/null 2>&1 || need g++
    command -v pkg-config >/dev/null 2>&1 || need pkg-config
    command -v valgrind >/dev/null 2>&1 || need valgrind
    command -v tshark >/dev/null 2>&1 || need tshark # the dissector in Lua, and a second opinion on captures
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || want chromium # looks at the report
    # A kernel that has sch_netem, and what loads its modules.
    command -v linux.uml >/dev/null 2>&1 || want user-mode-linux
    command -v insmod >/dev/null 2>&1 || [ -x /usr/sbin/insmod ] || [ -x /sbin/insmod ] || want kmod
    containers=docker # for that package under systemd, too
fi
if [ -n "$containers" ]; then
    # A client of its own package is Debian 13's way; it is looked for when docker.io did not bring one.
    if ! command -v docker >/dev/null 2>&1; then
        if [ "$round" = 0 ]; then want docker.io; else want docker-cli; fi
    elif ! command -v dockerd >/dev/null 2>&1 && [ ! -x /usr/sbin/dockerd ] && ! docker version >/dev/null 2>&1; then
        want docker.io
    fi
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null 2>&1 || want docker-compose
    command -v mmdebstrap >/dev/null 2>&1 || want mmdebstrap
fi
if [ -n "$missing" ] && [ "$round" -ge 2 ]; then
    say "zenjun: still missing after the installation:$missing"
    exit 1
fi
if [ -n "$missing$wanted" ] && [ "$round" -lt 2 ]; then
    root=
    [ "$(id -u)" = 0 ] || root=sudo
    if ! command -v apt-get >/dev/null 2>&1; then
        why="please install:$missing$wanted (this script knows only Debian's and Ubuntu's package manager)"
    elif [ -n "$root" ] && ! command -v sudo >/dev/null 2>&1; then
        why="as root, run: apt-get install$missing$wanted"
    else
        why=
    fi
    if [ -n "$why" ]; then
        say "zenjun: $why"
        [ -z "$missing" ] || exit 1
    else
        say "zenjun: installing$missing$wanted"
        apt() { $root env DEBIAN_FRONTEND=noninteractive apt-get "$@" >/dev/null; }
        install() { apt install -y -q --no-install-recommends "$@"; }
        apt update -q || [ -z "$missing" ]
        begun=
        if [ "$want" = test ] && [ -n "$python" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null && ! ready; then
            early >/dev/null 2>&1 &
            begun=$!
        fi
        # shellcheck disable=SC2086
        [ -z "$missing" ] || install $missing || { say "zenjun: the package manager could not install$missing"; exit 1; }
        for package in $wanted; do install "$package" || say "zenjun: the package manager could not install $package"; done
        [ -z "$begun" ] || wait "$begun" || :
        export ZENJUN_BOOTSTRAP_ROUND="$((round + 1))"
        exec tools/bootstrap.sh "$@" # look again with what is there now
    fi
fi
[ -z "$wanted" ] || say "zenjun: GOING ON WITHOUT$wanted: WHAT NEEDS IT DOES NOT RUN HERE"

# What only tests need, fetched while the C modules are compiled.
fetch() {
    # The tests of the compose file take both versions of compose; Debian 12 has one.
    if command -v docker >/dev/null 2>&1 && ! docker compose version >/dev/null 2>&1; then
        docker/compose-v2 .venv/docker || say "zenjun: GOING ON WITHOUT docker compose 2: THE COMPOSE FILE IS TRIED WITH docker-compose ONLY"
    fi
    # Debian's corosync programs and Pacemaker, unpacked for the tests of zenjun-corosync.
    tests/corosync-packages .venv/corosync || say "zenjun: GOING ON WITHOUT corosync'S PROGRAMS: WHAT NEEDS THEM DOES NOT RUN HERE"
    tests/corosync-packages .venv/pacemaker pacemaker || say "zenjun: GOING ON WITHOUT PACEMAKER: WHAT NEEDS IT DOES NOT RUN HERE"
}
fetched=
if ! ready; then
    say "zenjun: setting up .venv (Python packages, C modules)"
    environment
    if [ "$want" = test ]; then
        fetch &
        fetched=$!
    fi
    extra='[db]' # zenjun sql and zenjun db are commands of README
    compile= # what is imported is compiled then
    [ "$want" != test ] || { extra='[dev]'; compile=--no-compile; }
    install_python "setuptools>=77" "cffi>=1.16"
    # shellcheck disable=SC2086
    install_python $compile --no-build-isolation -e ".$extra"
    printf '%s' "$stamp $want" >.venv/ready
fi
if [ -n "$fetched" ]; then wait "$fetched"; elif [ "$want" = test ]; then fetch; fi
# mypy does not see setuptools' package-dir map: links stand in for it.
mkdir -p .typing/zenjun
for d in proto daemon tools; do ln -sfn "../../$d" ".typing/zenjun/$d"; done
for d in client names db; do ln -sfn "../../daemon/short/$d" ".typing/zenjun/$d"; done
