// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

// Appends the children of all threads of a process. Returns false if this kernel doesn't list them
// (CONFIG_PROC_CHILDREN).
bool list_children(pid_t parent, std::vector<pid_t>& children) {
  std::error_code error;  // the process may end at any moment
  for (std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", parent), error), end;
       !error && thread != end; thread.increment(error)) {
    const std::string path = thread->path().native() + "/children";
    if (children.empty() && access(path.c_str(), R_OK) != 0 && access(thread->path().c_str(), X_OK) == 0) return false;
    const std::string text = read_kernel_file(path);
    for (std::string_view rest = text; !rest.empty();) {
      if (const auto pid = parse_int(take_word(rest))) children.push_back(static_cast<pid_t>(*pid));
    }
  }
  return true;
}

}  // namespace

std::vector<ProcessEntry> process_table() {
  std::vector<ProcessEntry> table;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto pid = parse_int(entry->path().filename().native());
    if (!pid) continue;
    if (auto found = process_entry(static_cast<pid_t>(*pid))) table.push_back(std::move(*found));
  }
  if (error) throw SystemError("can't read the folder /proc (mount it, if it is not mounted)", error.value());
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

std::vector<ProcessEntry> descendants_of(pid_t root) {
  std::vector<ProcessEntry> found;
  std::vector<pid_t> open{root};
  while (!open.empty()) {
    std::vector<pid_t> children;
    if (!list_children(open.back(), children)) return descendants(process_table(), root, {});
    open.pop_back();
    for (const pid_t child : children) {
      auto entry = process_entry(child);
      if (!entry) continue;
      found.push_back(std::move(*entry));
      open.push_back(child);
    }
  }
  return found;
}

std::string pids_by_namespace(pid_t pid) {
  const std::string status = read_kernel_file(fmt::format("/proc/{}/status", pid));
  const auto at = status.find("\nNSpid:");
  return at == status.npos ? std::string() : status.substr(at + 7, status.find('\n', at + 1) - at - 7);
}

pid_t process_of_rank(pid_t root, int rank, pid_t pid) {
  const auto below = descendants_of(root);
  if (std::any_of(below.begin(), below.end(), [pid](const ProcessEntry& it) { return it.pid == pid; })) return pid;
  for (const ProcessEntry& it : below) {
    const bool has_pid = pids_by_namespace(it.pid).ends_with(fmt::format("\t{}", pid));
    if (has_pid && started_with(it.pid, fmt::format("RANK={}", rank))) return it.pid;
  }
  return 0;
}

std::vector<ProcessEntry> path_between(pid_t first, pid_t last) {
  std::vector<ProcessEntry> path;
  for (pid_t pid = last; pid > 1; pid = path.back().parent) {
    auto entry = process_entry(pid);
    if (!entry) return {};
    path.push_back(std::move(*entry));
    if (pid != first) continue;
    std::reverse(path.begin(), path.end());
    return path;
  }
  return {};
}

bool has_open(pid_t pid, std::string_view file) {
  std::error_code error;  // the process may end at any moment
  for (std::filesystem::directory_iterator fd(fmt::format("/proc/{}/fd", pid), error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code closed;
    if (std::filesystem::read_symlink(fd->path(), closed).native() == file) return true;
  }
  return false;
}

bool started_with(pid_t pid, std::string_view variable) {
  const std::string text = read_kernel_file(fmt::format("/proc/{}/environ", pid));
  std::string_view rest = text;
  while (!rest.empty()) {
    if (take_word(rest, '\0') == variable) return true;
  }
  return false;
}

}  // namespace lockstep::launcher
