#!/usr/bin/env bash
# symbols.sh [--update] [--lib DIR] [--headers DIR] [--list FILE]: holds what our shared libraries export to the public
# headers, and to the committed list of what they export for each other.
#
# Reads DIR/liblockstep*.so and the rooms' archives beside them (build/release/lib). --update, which the target
# update_private_symbols runs, writes the list (cmake/private_symbols.txt) from liblockstep.so instead.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
update=false lib=build/release/lib headers=runtime/include list=cmake/private_symbols.txt
usage() { sed -n '2,6s/^# \{0,1\}//p' tests/abi/symbols.sh; }
while (($#)); do
  case $1 in
    --update) update=true; shift ;;
    --lib | --headers | --list) (($# > 1)) || { usage >&2; exit 2; }; declare "${1#--}=$2"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[[ -f $lib/liblockstep.so ]] || { echo "abi: $lib/liblockstep.so is not there: build it, or give --lib" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the headers declare: "n NAMESPACE"; of a namespace "c NAME" for a class, "f NAME" for a function and "p NAME TYPE" for
# its first parameter, by which its overloads in internal headers differ; "t NAME" for a type in a class.
find "$headers" -name '*.h' -print0 | sort -z | xargs -0 awk '
  FNR == 1 { depth = 0; spaces = 0; at[0] = 0; path[0] = ""; fresh = 1 }
  {
    line = $0
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    sub(/\/\/.*/, "", line)
    if (line ~ /^[ \t]*(#.*)?$/) next
    here = (depth == at[spaces])  # between the declarations of a namespace, not within a class or function
    if (here && match(line, /^namespace [A-Za-z_:]+/)) {
      name = substr(line, RSTART + 10, RLENGTH - 10)
      ++spaces; at[spaces] = ++depth
      path[spaces] = path[spaces - 1] == "" ? name : path[spaces - 1] "::" name
      for (parts = split(path[spaces], part, "::"); parts > 0; --parts) {
        prefix = part[1]
        for (i = 2; i <= parts; ++i) prefix = prefix "::" part[i]
        print "n " prefix
      }
      next
    }
    plain = line
    gsub(/LOCKSTEP_(API|LOCAL) |\[\[[a-z]+\]\] /, "", plain)
    if (match(plain, /^ *(class|struct) [A-Za-z_0-9]+/) && plain !~ /;[ \t]*$/) {
      name = plain
      sub(/^ *(class|struct) /, "", name)
      sub(/[^A-Za-z_0-9].*/, "", name)
      print (here ? "c " path[spaces] "::" : "t ") name
    } else if (here && fresh && match(plain, /(operator[^ (]+|[A-Za-z_0-9]+)\(/)) {
      name = path[spaces] "::" substr(plain, RSTART, RLENGTH - 1)
      type = substr(plain, RSTART + RLENGTH)
      sub(/^const /, "", type)
      sub(/[^A-Za-z_0-9:].*/, "", type)
      sub(/.*::/, "", type)
      print "f " name
      print "p " name " " type
      fresh = 0
    }
    if (line ~ /[;{}][ \t]*$/ || line ~ /^template/) fresh = 1
    depth += gsub(/\{/, "{", line) - gsub(/\}/, "}", line)
    if (spaces > 0 && depth < at[spaces]) --spaces
  }' | sort -u >"$work/declared"

# symbols_of NM-ARGUMENT...: lines "TYPE MANGLED VERSION", the version "-" where there is none.
symbols_of() {
  nm "$@" | awk 'NF >= 2 && $(NF - 1) ~ /^[A-Za-z]$/ && $(NF - 1) != "A" {
    name = $NF; version = "-"
    if (match(name, /@+/)) { version = substr(name, RSTART + RLENGTH); name = substr(name, 1, RSTART - 1) }
    print $(NF - 1), name, version }' | sort -u
}
# named: adds to each line the demangled name.
named() {
  cat >"$work/plain"
  awk '{print $2}' "$work/plain" | c++filt | paste -d' ' "$work/plain" -
}
# judged FIELDS: lines "WHERE TYPE MANGLED VERSION DEMANGLED", WHERE being public (a public header declares it), nested (a
# type that no public header defines, in a class of one), internal (of namespace lockstep) or foreign.
judged() {
  named | awk -v declared="$work/declared" '
    BEGIN { while ((getline line < declared) > 0) known[line] = 1 }
    {
      name = $0
      sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", name)
      sub(/^(vtable|VTT|typeinfo name|typeinfo|non-virtual thunk|virtual thunk|covariant return thunk|guard variable|construction vtable)( for| to)? /, "", name)
      where = "foreign"
      # The name of a template begins with its return type.
      if (name ~ /^lockstep::/ || $2 ~ /^(_ZN(KR?)?8lockstep|lockstep_plugin_)/) {
        where = "internal"
        type = ""
        # Of the first parameter, and not of a function that a parameter is.
        if (match(name, /^[^(]*\(lockstep::[A-Za-z_0-9:]+/)) type = substr(name, RSTART, RLENGTH)
        sub(/^[^(]*\(/, "", type)
        sub(/.*::/, "", type)
        sub(/[(<\[ ].*/, "", name)
        parts = split(name, part, "::")
        owner = part[1]
        for (i = 2; i <= parts && (("n " owner) in known); ++i) owner = owner "::" part[i]
        if (("c " owner) in known) {
          where = "public"
          for (; i < parts; ++i) if (!(("t " part[i]) in known)) where = "nested"
        } else if (("f " owner) in known && (type == "" || ("p " owner " " type) in known)) {
          where = "public"
        }
      }
      print where, $0
    }'
}

if $update; then
  {
    echo "# What liblockstep.so exports for our own libraries, plug-ins, programs and tests. The target update_private_symbols writes this list."
    symbols_of -D --defined-only --with-symbol-versions "$lib/liblockstep.so" | judged |
      awk '$1 == "internal" && $2 != "W" {name = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name); print $3 "  # " name}' | LC_ALL=C sort
  } >"$work/list"
  cp "$work/list" "$list"
  echo "abi: $list has $(grep -c '^_Z' "$list") symbols; build again, so that they get their version"
  exit 0
fi

complaints=$work/complaints
: >"$complaints"
grep -o '^_Z[^ ]*' "$list" | sort -u >"$work/listed" || true

# Each of our libraries, and of the core also the list.
for name in lockstep lockstep_nn lockstep_libtorch; do
  library=$lib/lib$name.so
  [[ -f $library ]] || continue
  symbols_of -D --defined-only --with-symbol-versions "$library" | judged >"$work/of_$name"
  awk -v library="$(basename "$library")" -v listed="$work/listed" -v list="$list" -v core="$name" '
    BEGIN { while ((getline line < listed) > 0) expected[line] = 1 }
    {
      where = $1; symbol = $3; version = $4
      name = $0
      sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name)
      private = version ~ /^LOCKSTEP_PRIVATE_[0-9.]+$/
      if (private) seen[symbol] = 1
      if (where == "foreign")
        print library ": exports " name ", which is not in namespace lockstep: cmake/LockstepSymbols.cmake keeps that inside"
      else if (where == "nested")
        print library ": exports " name ", of a type that no public header defines: declare that LOCKSTEP_LOCAL"
      else if (private && where == "public")
        print library ": " name " is listed in " list " and a public header declares it: build the target update_private_symbols"
      else if (!private && version !~ /^LOCKSTEP_[0-9.]+$/)
        print library ": exports " name " with version " version ", wanted LOCKSTEP_x.y"
      else if (!private && where == "internal")
        print library ": exports " name ", which no public header declares and " list " does not list: take its " \
              "LOCKSTEP_API or LOCKSTEP_INTERNAL_API away, or declare a template of a class LOCKSTEP_LOCAL; if another of our libraries needs it, build the target update_private_symbols"
    }
    END {
      if (core == "lockstep")
        for (symbol in expected) if (!(symbol in seen))
          print library ": does not export " symbol ", which " list " lists: build again; if it is meant to be gone, build the target update_private_symbols"
    }' "$work/of_$name" >>"$complaints"
done

# What a public header declares and a source file defines is exported by one of them.
cat "$work"/of_* | awk '{print $3}' | sort -u >"$work/exported"
archives=("$lib"/liblockstep_*.a)
[[ -f ${archives[0]} ]] || { echo "abi: no archive of a room in $lib" >&2; exit 1; }
symbols_of --defined-only "${archives[@]}" | awk '$1 ~ /^[TDBR]$/' | judged | awk -v exported="$work/exported" '
  BEGIN { while ((getline line < exported) > 0) has[line] = 1 }
  $1 == "public" && !($3 in has) {
    name = $0
    sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name)
    print name " is declared in a public header and exported by no library: give its class or function LOCKSTEP_API, or LOCKSTEP_LOCAL"
  }' >>"$complaints"

# A plug-in has its entry points.
for name in mpi cuda; do
  library=$lib/liblockstep_$name.so
  [[ -f $library ]] || continue
  symbols_of -D --defined-only --with-symbol-versions "$library" | judged | awk -v library="$(basename "$library")" '
    $3 == "lockstep_plugin_backend" || $3 == "lockstep_plugin_device" { ++entries; next }
    { name = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name); print library ": exports " name "; a plug-in exports lockstep_plugin_* alone" }
    END { if (!entries) print library ": exports no lockstep_plugin_*, by which it is found" }' >>"$complaints"
done

# Each macro in its own headers.
grep -rlE 'LOCKSTEP_INTERNAL_API|runtime/base/internal_api.h' "$headers" --include='*.h' --exclude=api.h |
  sed 's/$/: is public and uses LOCKSTEP_INTERNAL_API: write LOCKSTEP_API/' >>"$complaints" || true

if [[ -s $complaints ]]; then
  sort -u "$complaints" | sed 's/^/abi: /' >&2
  exit 1
fi
echo "abi: $(wc -l <"$work/exported") symbols, $(wc -l <"$work/listed") of them for our own libraries"
