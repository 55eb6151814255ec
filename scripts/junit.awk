# Reads ctest's JUnit report.
#   awk -v want=skipped -f scripts/junit.awk REPORT    one line for each skipped test: "  NAME: REASON"; of a process that ran
#                                                      several, with the name of the process
#   awk -v want=ran -f ...                             the names of all others
#   awk -v want=failed -v lines=40 -f ...              each failed test's name, why, and the last lines of its output
#   awk -v want=sanitizer -f ...                       the failed tests in whose output a sanitizer says something
# A test that could not be run (no executable, a fixture that failed) is in the report as skipped; here it has failed.
# SPDX-License-Identifier: Apache-2.0
function plain(text) {
  gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text); gsub(/&quot;/, "\"", text); gsub(/&apos;/, "'", text)
  gsub(/&amp;/, "\\&", text)
  return text
}
function attribute(name, text) {
  if (!match(text, name "=\"[^\"]*\"")) return ""
  return plain(substr(text, RSTART + length(name) + 2, RLENGTH - length(name) - 3))
}
function add(line) {
  output[count++] = plain(line)
  if (line ~ /(WARNING|ERROR): [A-Za-z]+Sanitizer|: runtime error: /) sanitizer = 1
}
/^\t<testcase / {
  name = attribute("name", $0); status = attribute("status", $0); seconds = attribute("time", $0)
  why = ""; skipped = 0; count = 0; inside = 0; sanitizer = 0
  next
}
!inside && /<failure / { why = attribute("message", $0) }
!inside && /<skipped / {
  why = attribute("message", $0)
  skipped = why ~ /^SKIP_/
}
!inside && /<system-out>/ { sub(/.*<system-out>/, ""); inside = 1 }
inside && /<\/system-out>/ {
  sub(/<\/system-out>.*/, "")
  if ($0 != "") add($0)
  inside = 0
  next
}
inside { add($0) }
/^\t<\/testcase>/ {
  # Disabled tests are reported as such by nobody: they count as skipped.
  if (status == "disabled") { skipped = 1; output[0] = "SKIPPED: DISABLED in CMakeLists.txt"; count = 1 }
  if (skipped && want == "skipped") print "  " name ": " reason()
  if (!skipped && want == "skipped") {
    for (i = 0; i + 1 < count; i++) if (output[i] ~ /: Skipped$/) print "  " name ": " output[i + 1]
  }
  if (!skipped && want == "ran") print name
  if (!skipped && status != "run" && sanitizer && want == "sanitizer") print name
  if (!skipped && status != "run" && want == "failed") {
    print "---- " name " failed after " seconds " s" (why == "" ? "" : ": " why)
    first = count > lines ? count - lines : 0
    if (first > 0) print "     (" first " lines before these are in the report)"
    for (i = first; i < count; i++) print output[i]
  }
}
# The reason is what the test printed after "Skipped" (GoogleTest) or behind "SKIPPED:" (others).
function reason(    i, take) {
  for (i = 0; i < count; i++) {
    if (take && output[i] !~ /^[ \t]*$/) return output[i]
    if (output[i] ~ /: Skipped$/) take = 1
    if (output[i] ~ /SKIPPED: /) return substr(output[i], index(output[i], "SKIPPED: ") + 9)
  }
  return "no reason given"
}
