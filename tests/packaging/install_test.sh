#!/bin/sh
# Installs a build into a folder and looks at what is there: programs that run,
# completion that completes, man pages, units that systemd takes, examples whose
# flags there are.
#   install_test.sh CMAKE BUILD_FOLDER SOURCE_FOLDER
set -eu
cmake=$1
build=$2
source=$3
prefix=$(mktemp -d)
up=
cleanup() {
  [ -z "$up" ] || kill "$up" 2>/dev/null || true
  rm -rf "$prefix"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
has() {
  [ -s "$prefix/$1" ] || fail "$1 was not installed"
}

for file in bin/baton bin/baton-router bin/baton-prefill bin/baton-decode \
    bin/baton-worker client/libbaton_client.a; do
  if [ ! -e "$build/$file" ]; then
    echo "$file is not built: not all is there to install"
    exit 77
  fi
done
"$cmake" --install "$build" --prefix "$prefix" > "$prefix/log" ||
  { cat "$prefix/log"; fail "cmake --install"; }

for program in baton baton-router baton-prefill baton-decode baton-worker; do
  has bin/$program
  version=$("$prefix/bin/$program" --version)
  [ "${version%% *}" = $program ] || fail "$program --version: $version"
done
has share/doc/baton/README.md
has share/doc/baton/CHANGELOG.md
has share/doc/baton/architecture.md
has share/doc/baton/adr/0001-dependencies.md
has share/doc/baton/examples/prometheus/prometheus-local.yml
has share/doc/baton/examples/systemd/router.env
has share/baton/models/stories/config.json
[ ! -e "$prefix/share/doc/baton/examples/docker" ] || fail "docker"

# Completion.
for program in baton baton-router baton-prefill baton-decode baton-worker; do
  has share/bash-completion/completions/$program
  has share/zsh/site-functions/_$program
  has share/fish/vendor_completions.d/$program.fish
done
words=$(bash -uc '. "$1"; COMP_WORDS=(baton bench s); COMP_CWORD=2
  _baton; echo "${COMPREPLY[@]}"' - \
  "$prefix/share/bash-completion/completions/baton")
[ "$words" = serve ] || fail "bash completes 'baton bench s' with '$words'"
words=$(bash -uc '. "$1"; COMP_WORDS=(baton-router --placement c); COMP_CWORD=2
  _baton_router; echo "${COMPREPLY[@]}"' - \
  "$prefix/share/bash-completion/completions/baton-router")
[ "$words" = cost-model ] ||
  fail "bash completes 'baton-router --placement c' with '$words'"

# Man pages, where help2man writes them.
if [ -e "$prefix/share/man/man1/baton.1" ]; then
  for program in baton baton-router baton-prefill baton-decode baton-worker; do
    page=$prefix/share/man/man1/$program.1
    [ -s "$page" ] || fail "$program.1 is empty"
    "$prefix/bin/$program" --help | sed -n 's/^  \(-h,\)*--\([a-z0-9-]*\).*/\2/p' |
      while read -r flag; do
        # roff has hyphens as \-
        grep -qF -- "$(printf '%s' "--$flag" | sed 's/-/\\-/g')" "$page" ||
          fail "$program.1 has no --$flag"
      done
  done
else
  echo "no man pages: help2man was not found"
fi

# Units: systemd's own opinion, with the programs where they look for them.
units=lib/systemd/system
for unit in baton-router.service baton-prefill@.service \
    baton-decode@.service baton-worker@.service; do
  has $units/$unit
done
for example in "$source"/deploy/systemd/*.env; do
  case $example in
    */router.env) program=baton-router ;;
    */prefill-*) program=baton-prefill ;;
    */decode-*) program=baton-decode ;;
    */dual-*) program=baton-worker ;;
    *) fail "whose is $example?" ;;
  esac
  "$prefix/bin/$program" --help > "$prefix/help"
  sed -n 's/^BATON_FLAGS=//p' "$example" | tr ' ' '\n' | grep '^--' |
    while read -r flag; do
      grep -q -- "^  $flag " "$prefix/help" || fail "$example: $flag"
    done
done
if command -v systemd-analyze > /dev/null; then
  root=$prefix/root
  mkdir -p "$root/usr" "$root/etc/baton"
  cp -r "$prefix/bin" "$prefix/lib" "$root/usr"
  cp "$source"/deploy/systemd/*.env "$root/etc/baton"
  cp -r /usr/lib/systemd/system/. "$root/usr/$units" 2> /dev/null || true
  for unit in baton-router.service baton-prefill@0.service \
      baton-decode@0.service baton-worker@0.service; do
    # Pages of the manual are not in that root.
    systemd-analyze --root="$root" --man=no --recursive-errors=no verify \
      "$unit" > "$prefix/verify" 2>&1 || { cat "$prefix/verify"; fail "$unit"; }
    if grep -i baton "$prefix/verify"; then fail "$unit"; fi
    score=$(systemd-analyze --root="$root" --offline=true --no-pager \
      security "$unit" 2>&1 | sed -n 's/.*: \([0-9]*\)\.[0-9] .*/\1/p' | tail -1)
    echo "$unit: exposure below $((${score:-9} + 1))"
    [ "${score:-9}" -lt 3 ] || fail "$unit is not hardened"
  done
else
  echo "no systemd-analyze: the units were not verified"
fi

# The model that came along is found.
mkfifo "$prefix/ready"
cd /
"$prefix/bin/baton" up --listen 127.0.0.1:0 --ready-fd 3 --die-with-parent \
  3> "$prefix/ready" > "$prefix/up" 2>&1 &
up=$!
read -r line < "$prefix/ready" || true
case $line in
  *'"ready":true'*) ;;
  *) cat "$prefix/up"; fail "baton up: '$line'" ;;
esac
kill -INT "$up"
wait "$up" || { cat "$prefix/up"; fail "baton up ended with $?"; }
up=
echo "installed and looked at"
