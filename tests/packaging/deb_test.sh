#!/bin/sh
# Makes the Debian package of a build and looks at it as one who installs it
# would: what it says of itself, which packages it asks for, what is in it, what
# its scripts are, and whether its programs run from where it puts them.
#   deb_test.sh CPACK BUILD_FOLDER
set -eu
cpack=$1
build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
skip() {
  echo "skipped: $*"
  exit 77
}

command -v "$cpack" > /dev/null || skip "there is no cpack"
for tool in dpkg-deb dpkg-shlibdeps dpkg-query; do
  command -v $tool > /dev/null || skip "there is no $tool (Debian: dpkg-dev)"
done
programs="baton baton-router baton-prefill baton-decode baton-worker"
for program in $programs; do
  [ -e "$build/bin/$program" ] || skip "bin/$program is not built"
done
[ -e "$build/client/libbaton_client.a" ] || skip "libbaton_client is not built"

# Not compressed: that is most of the time, and not ours.
(cd "$scratch" && "$cpack" -G DEB --config "$build/CPackConfig.cmake" \
  -B "$scratch/out" -D CPACK_DEBIAN_COMPRESSION_TYPE=none) \
  > "$scratch/log" 2>&1 || { cat "$scratch/log"; fail "cpack"; }
set -- "$scratch"/out/*.deb
[ $# -eq 1 ] && [ -s "$1" ] || fail "cpack made $*"
deb=$1

# --- What it says of itself.
field() {
  dpkg-deb --field "$deb" "$1"
}
version=$("$build/bin/baton" --version)
version=${version#* }
architecture=$(dpkg --print-architecture)
[ "$(field Package)" = baton ] || fail "Package: $(field Package)"
[ "$(field Version)" = "$version" ] || fail "Version: $(field Version)"
[ "$(field Architecture)" = "$architecture" ] ||
  fail "Architecture: $(field Architecture)"
[ "$(basename "$deb")" = "baton_${version}_$architecture.deb" ] ||
  fail "the package is called $(basename "$deb")"
for name in Maintainer Description Section Installed-Size; do
  [ -n "$(field $name)" ] || fail "no $name"
done
case $(field Description) in
  *"was not"* | *"built using CMake"*) fail "Description: $(field Description)" ;;
esac

# --- What it asks for: packages that there are, in versions that there are. The
# libraries of this build are this machine's, so all of them are installed here.
field Depends | tr ',' '\n' | sed 's/^ *//; s/ *$//' > "$scratch/depends"
[ "$(wc -l < "$scratch/depends")" -ge 5 ] ||
  fail "Depends: $(field Depends)"
for library in libc6 libgrpc++ libprotobuf libucx; do
  grep -q "^$library" "$scratch/depends" || fail "does not depend on $library"
done
while read -r name relation wanted; do
  case $name in *'|'*) fail "Depends: $name" ;; esac
  there=$(dpkg-query -W -f '${Version}' "$name" 2> /dev/null) ||
    fail "Depends: $name, which is no installed package"
  [ -n "$there" ] || fail "Depends: $name, which is not installed"
  [ -n "$relation" ] || continue
  wanted=${wanted%)}
  dpkg --compare-versions "$there" "${relation#(}" "$wanted" ||
    fail "Depends: $name ${relation#(} $wanted; $there is installed"
done < "$scratch/depends"

# --- What is in it: no folder but those of /usr, everything root's and for all
# to read, nothing for others to write.
dpkg-deb --contents "$deb" > "$scratch/contents"
awk '$6 !~ /^\.\/(usr(\/.*)?)?$/ { print; bad = 1 } END { exit bad }' \
  "$scratch/contents" || fail "files outside of /usr"
awk '$2 != "root/root" { print; bad = 1 } END { exit bad }' \
  "$scratch/contents" || fail "files that are not root's"
awk 'substr($1, 1, 1) != "l" && (substr($1, 6, 1) == "w" ||
    substr($1, 9, 1) == "w" || substr($1, 8, 1) != "r") { print; bad = 1 }
  END { exit bad }' "$scratch/contents" || fail "permissions"
if grep -E '(\.gitignore|__pycache__|/targets/.*\.json|\.py)$' \
    "$scratch/contents"; then
  fail "files of the repository that are nobody's business"
fi
root=$scratch/root
dpkg-deb --extract "$deb" "$root"
has() {
  [ -s "$root/usr/$1" ] || fail "/usr/$1 is not in the package"
}
for program in $programs; do
  has bin/$program
done
for file in share/bash-completion/completions/baton \
    share/zsh/site-functions/_baton share/fish/vendor_completions.d/baton.fish \
    share/bash-completion/completions/baton-decode \
    lib/systemd/system/baton-router.service \
    lib/systemd/system/baton-prefill@.service \
    lib/systemd/system/baton-decode@.service \
    lib/systemd/system/baton-worker@.service \
    share/doc/baton/README.md share/doc/baton/CHANGELOG.md \
    share/doc/baton/operations.md share/doc/baton/images/dashboard-overview.png \
    share/doc/baton/examples/prometheus/prometheus-local.yml \
    share/doc/baton/examples/prometheus/rules/baton-alerts.yml \
    share/doc/baton/examples/systemd/router.env \
    share/doc/baton/examples/kubernetes/base/kustomization.yaml \
    share/baton/models/stories/config.json include/baton/client.h; do
  has $file
done
if command -v help2man > /dev/null; then
  for program in $programs; do
    has share/man/man1/$program.1
  done
fi
# Units name only files that the package has.
sed -n 's|^Documentation=.*file://\([^ ]*\).*|\1|p' \
  "$root"/usr/lib/systemd/system/*.service | sort -u > "$scratch/named"
[ -s "$scratch/named" ] || fail "no unit names its documentation"
while read -r file; do
  [ -s "$root$file" ] || fail "a unit names $file, which is not there"
done < "$scratch/named"

# --- Its scripts.
dpkg-deb --control "$deb" "$scratch/control"
for script in postinst prerm postrm; do
  [ -x "$scratch/control/$script" ] || fail "no $script that can be run"
  sh -n "$scratch/control/$script" || fail "$script"
done
(cd "$root" && md5sum --quiet -c "$scratch/control/md5sums") || fail "md5sums"
# They leave a machine alone on which nothing is configured.
if [ ! -d /run/systemd/system ]; then
  "$scratch/control/postinst" configure || fail "postinst"
  "$scratch/control/prerm" remove || fail "prerm"
  "$scratch/control/postrm" remove || fail "postrm"
fi

# --- Its programs: without what a debugger needs or a path of the build, with
# all their libraries, and running.
for program in $programs; do
  file=$root/usr/bin/$program
  sections=$(readelf -SW "$file")
  case $sections in *.debug_info*) fail "$program is not stripped" ;; esac
  if readelf -d "$file" | grep -E 'R(UN)?PATH'; then
    fail "$program looks for libraries in folders of its own"
  fi
  if ldd "$file" | grep 'not found'; then fail "libraries of $program"; fi
  said=$("$file" --version)
  [ "$said" = "$program $version" ] || fail "$program --version: $said"
done
size=$(du -sk "$root" | cut -f1)
echo "$(basename "$deb"): $(wc -l < "$scratch/depends") dependencies," \
  "$(grep -vc '/$' "$scratch/contents") files, $size KiB installed"
