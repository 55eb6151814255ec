#include "launcher/process_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {
namespace {

// A process may end at any moment, between open and read too (then read says ESRCH): the text is empty or short then.
// std::ifstream would throw.
std::string read_proc_file(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::string text;
  char buffer[4096];
  while (true) {
    const auto bytes = read(file.get(), buffer, sizeof buffer);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(bytes));
  }
}

bool next_number(std::string_view& rest, pid_t& value) {
  if (rest.empty() || rest.front() != ' ') return false;
  rest.remove_prefix(1);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc{}) return false;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return true;
}

}  // namespace

std::optional<ProcessEntry> parse_process_stat(std::string_view text) {
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string_view::npos || open == 0 || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  const auto pid = parse_int(text.substr(0, open - 1));
  std::string_view rest = text.substr(close + 1);
  if (!pid || rest.size() < 3) return std::nullopt;
  ProcessEntry entry;
  entry.pid = static_cast<pid_t>(*pid);
  entry.name = text.substr(open + 1, close - open - 1);
  entry.state = rest[1];
  rest.remove_prefix(2);
  if (!next_number(rest, entry.parent) || !next_number(rest, entry.group)) return std::nullopt;
  return entry;
}

std::optional<ProcessEntry> process_entry(pid_t pid) {
  return parse_process_stat(read_proc_file(fmt::format("/proc/{}/stat", pid)));
}

std::vector<ProcessEntry> process_table() {
  std::vector<ProcessEntry> table;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto pid = parse_int(entry->path().filename().native());
    if (!pid) continue;
    if (auto found = process_entry(static_cast<pid_t>(*pid))) table.push_back(std::move(*found));
  }
  if (error) throw SystemError("read the folder /proc (is it mounted?)", error.value());
  return table;
}

std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root,
                                      const std::set<pid_t>& except) {
  std::multimap<pid_t, const ProcessEntry*> children;
  for (const auto& entry : table) children.emplace(entry.parent, &entry);
  std::vector<ProcessEntry> found;
  std::vector<pid_t> open{root};
  while (!open.empty()) {
    const auto [first, last] = children.equal_range(open.back());
    open.pop_back();
    for (auto child = first; child != last; ++child) {
      if (except.contains(child->second->pid)) continue;
      found.push_back(*child->second);
      open.push_back(child->second->pid);
    }
  }
  return found;
}

bool started_with(pid_t pid, std::string_view variable) {
  const std::string text = read_proc_file(fmt::format("/proc/{}/environ", pid));
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto end = rest.find('\0');
    if (rest.substr(0, end) == variable) return true;
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace lockstep::launcher
