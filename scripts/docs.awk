# Gives Doxygen our comments: awk -f scripts/docs.awk HEADER
#
# "// text" becomes "/// text", behind code "///< text", and the comment at the top of a header the header's own. What
# Markdown or Doxygen would read as markup in plain text (<, >, #, @, \, *, _) is escaped, but for code between backticks. A
# class that is named as its header (Reducer in reducer.h), and has no comment of its own, gets the header's too.
# SPDX-License-Identifier: Apache-2.0
function escaped(text, parts, count, i, all) {
  count = split(text, parts, "`")
  all = ""
  for (i = 1; i <= count; ++i) {
    if (i % 2 == 1) gsub(/[\\<>#@*_%&~]/, "\\\\&", parts[i])
    all = all (i > 1 ? "`" : "") parts[i]
  }
  return all
}
function class_of(file, parts, count, i, name) {
  sub(/.*\//, "", file); sub(/\.h$/, "", file)
  count = split(file, parts, "_")
  for (i = 1; i <= count; ++i) name = name toupper(substr(parts[i], 1, 1)) substr(parts[i], 2)
  return name
}
NR == 1 && /SPDX-License-Identifier/ { print; skipped = 1; next }
NR == 1 + skipped && /^\/\// { print "/// \\file"; top = 1; header = "" }
top && !/^\/\// { top = 0; print "" }
/^[ ]*\/\// {
  at = index($0, "//")
  text = substr($0, at + 2)
  # An indented block of such lines is an example.
  text = text ~ /^   +[^ ]/ ? " " text : escaped(text)
  print substr($0, 1, at - 1) ((behind && at == column) ? "///<" : "///") text
  if (top) header = header "///" text "\n"
  commented = 1
  next
}
/^(class|struct) / && !commented && $2 == class_of(FILENAME) && header != "" { printf "%s", header; header = "" }
{
  commented = behind = 0
  if ($0 !~ /^#/ && $0 !~ /:\/\// && match($0, /[;,{})a-z0-9] +\/\/ /)) {
    column = index($0, " // ") + 1
    behind = 1
    print substr($0, 1, column - 1) "///<" escaped(substr($0, column + 2))
    next
  }
  print
}
