#!/usr/bin/env bash
# check.sh SOURCE BUILD WORK CMAKE [PACKAGES]: the packages of BUILD, or of the folder PACKAGES: each file of the install
# tree is in one of them and in no other, none knows where it was built, and each says what it needs.
set -Eeuo pipefail
trap 'echo "packages: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 build=$2 work=$3 cmake=$4 packages=${5-}
rm -rf "$work"
mkdir -p "$work/tree" "$work/files"
if [[ -z $packages ]]; then
  packages=$work/packages
  cpack --config "$build/CPackConfig.cmake" -B "$packages" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
fi
fail() { echo "packages: $*" >&2; exit 1; }
field() { dpkg-deb --field "$1" "$2"; }

for package in "$packages"/lockstep*.deb; do
  name=$(field "$package" Package)
  [[ -e $packages/${name}_$(field "$package" Version)_$(field "$package" Architecture).deb ]] || fail "$package has another one's name"
  dpkg-deb --extract "$package" "$work/files/$name"
  grep -q 'SPDX-License-Identifier: Apache-2.0' "$work/files/$name"/usr*/{local/,}share/doc/"$name"/copyright 2>/dev/null ||
    fail "$name has no copyright file"
  # What the system has for it, as dpkg-shlibdeps found, and its own kin of the same version.
  case $name in
    lockstep) wanted='libc6 libspdlog libdnnl' ;;
    lockstep-plugin-mpi) wanted='lockstep libopenmpi' ;;
    lockstep-libtorch) wanted='lockstep lockstep-dev libtorch-dev libtorch[0-9]' ;;
    *) wanted=lockstep ;;
  esac
  depends=$(field "$package" Depends)
  for other in $wanted; do
    [[ $other == lockstep* ]] && other="$other (= $(field "$package" Version))"
    [[ ", $depends" == *", "$other* ]] || fail "$name does not depend on $other, but on $depends"
  done
done

# Files, by packages and as they are installed at once. Debian's documents come with the packages alone, LICENSE without them.
(cd "$work/files" && find . -mindepth 2 ! -type d | cut -d/ -f3- | grep -vE 'share/doc/lockstep[^/]*/(copyright|changelog.gz)$' |
  sort) >"$work/packaged"
twice=$(uniq -d "$work/packaged")
[[ -z $twice ]] || fail "in two packages: $twice"
DESTDIR=$work/tree "$cmake" --install "$build" >"$work/install.log"
(cd "$work/tree" && find . ! -type d | cut -c3- | grep -vE 'share/doc/lockstep/LICENSE$|/bin/[0-9]' | sort) >"$work/installed"
diff "$work/installed" "$work/packaged" >"$work/diff" || fail "installed (<) and packaged (>) differ: $(cat "$work/diff")"

for place in "$source" "$build"; do
  found=$(grep -rlF -- "$place" "$work/files" || true)
  [[ -z $found ]] || fail "'$place', where they were built, is in $found"
done
while read -r file; do
  searched=$(readelf -d "$file" 2>/dev/null | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
  # shellcheck disable=SC2016  # the loader's word
  [[ -z $searched || $searched == '$ORIGIN'* ]] || fail "$file searches $searched"
done < <(find "$work/files" -type f \( -name '*.so*' -o -path '*/bin/*' \))
echo "packages: $(wc -l <"$work/packaged") files in $(ls "$packages"/lockstep*.deb | wc -l) packages"
