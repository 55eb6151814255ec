// SPDX-License-Identifier: Apache-2.0
#include "tests/support/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/environment.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/process.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Empty or short if the process has ended, which it may at any moment; std::ifstream would throw.
std::string read_text(const fs::path& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t bytes;
  while (file && (bytes = read(file.get(), buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<std::size_t>(bytes));
  }
  return text;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.insert(entry->path().filename().native());
  }
  return names;
}

// Fills in what /proc says; false if it is gone.
bool read_process(pid_t pid, LiveProcess& process) {
  const auto folder = fs::path("/proc") / std::to_string(pid);
  const std::string stat = read_text(folder / "stat");
  const auto open = stat.find('(');
  const auto close = stat.rfind(')');
  if (close == std::string::npos || stat.size() < close + 4) return false;
  const char state = stat[close + 2];
  if (state == 'Z' || state == 'X') return false;
  process.pid = pid;
  process.name = stat.substr(open + 1, close - open - 1);
  std::istringstream(stat.substr(close + 3)) >> process.parent >> process.group;
  std::istringstream entries(read_text(folder / "environ"));
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const auto split = entry.find('=');
    if (split != std::string::npos) process.environment[entry.substr(0, split)] = entry.substr(split + 1);
  }
  return true;
}

// "0100007F:A021" of /proc/net/tcp; IPv6 addresses stay in hex.
std::string address_text(const std::string& hex) {
  const auto colon = hex.find(':');
  if (colon == std::string::npos) return hex;
  const auto port = std::stoul(hex.substr(colon + 1), nullptr, 16);
  if (colon != 8) return fmt::format("[{}]:{}", hex.substr(0, colon), port);
  const auto address = std::stoul(hex.substr(0, 8), nullptr, 16);
  return fmt::format("{}.{}.{}.{}:{}", address & 255, (address >> 8) & 255, (address >> 16) & 255, address >> 24, port);
}

void add_tcp(const fs::path& table, std::map<std::string, std::string>& by_inode) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // headings
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state == "0A") by_inode[inode] = fmt::format("{} (inode {})", address_text(local), inode);
  }
}

void add_unix(const fs::path& table, std::map<std::string, std::string>& by_inode) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
    const bool listens = flags.size() == 8 && (std::stoul(flags, nullptr, 16) & 0x10000) != 0;
    if (listens) by_inode[inode] = fmt::format("unix {} (inode {})", path, inode);
  }
}

// In the network of that process, by its folder in /proc.
std::map<std::string, std::string> listening_by_inode(const fs::path& process) {
  std::map<std::string, std::string> by_inode;
  add_tcp(process / "net/tcp", by_inode);
  add_tcp(process / "net/tcp6", by_inode);
  add_unix(process / "net/unix", by_inode);
  return by_inode;
}

// Names that other software of this host makes while our tests run.
bool is_foreign_shared_memory(const std::string& name) {
  return name.starts_with("vader_segment") || name.starts_with("sm_segment") || name.starts_with("psm2_") ||
         name.starts_with("ucx_") || name.starts_with("libpod") || name.starts_with("sem.") ||
         name.starts_with("crash-states-");  // another test's disks
}

}  // namespace

std::vector<LiveProcess> processes_with(std::string_view name, std::string_view value) {
  std::vector<LiveProcess> found;
  for (const auto& entry : names_in("/proc")) {
    const auto pid = parse_int(entry);
    LiveProcess process;
    if (!pid || !read_process(static_cast<pid_t>(*pid), process)) continue;
    const auto variable = process.environment.find(std::string(name));
    if (variable != process.environment.end() && variable->second == value) found.push_back(std::move(process));
  }
  return found;
}

char process_state(pid_t pid) {
  const std::string stat = read_text(fs::path("/proc") / std::to_string(pid) / "stat");
  const auto close = stat.rfind(')');
  return close == std::string::npos || stat.size() < close + 3 ? '?' : stat[close + 2];
}

std::map<int, pid_t> live_ranks(std::string_view program) {
  const std::string name = fs::path(program).filename().native().substr(0, 15);
  std::map<int, pid_t> ranks;
  for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
    for (const auto* variable : {"RANK", "OMPI_COMM_WORLD_RANK"}) {
      const auto rank = process.environment.find(variable);
      if (rank == process.environment.end() || (!name.empty() && process.name != name)) continue;
      ranks[std::stoi(rank->second)] = process.pid;
      break;
    }
  }
  return ranks;
}

std::set<std::string> listening_sockets(const std::vector<pid_t>& pids) {
  std::set<std::string> found;
  for (const pid_t pid : pids) {
    const auto folder = fs::path("/proc") / std::to_string(pid);
    const auto by_inode = listening_by_inode(folder);
    for (const auto& fd : names_in(folder / "fd")) {
      std::error_code error;
      const std::string target = fs::read_symlink(folder / "fd" / fd, error).native();
      if (error || !target.starts_with("socket:[")) continue;
      const auto socket = by_inode.find(target.substr(8, target.size() - 9));
      if (socket != by_inode.end()) found.insert(socket->second);
    }
  }
  return found;
}

std::set<std::string> listening_sockets() {
  std::set<std::string> found;
  for (const auto& [inode, text] : listening_by_inode("/proc/self")) found.insert(text);
  return found;
}

Footprint::Footprint(std::set<std::string> ignored)
    : ignored_(std::move(ignored)), shared_memory_(names_in("/dev/shm")) {}

void Footprint::look() {
  pids_.clear();
  for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
    if (!ignored_.contains(process.name)) pids_.push_back(process.pid);
  }
  sockets_ = listening_sockets(pids_);
}

std::string Footprint::left_after(const Deadline& deadline) const {
  std::string left;
  wait_until([&] { return (left = left_now()).empty(); }, deadline);
  return left;
}

std::string Footprint::left_now() const {
  std::string left;
  for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
    if (!ignored_.contains(process.name)) left += fmt::format("process {} ({})\n", process.pid, process.name);
  }
  const auto listening = listening_sockets();
  for (const auto& socket : sockets_) {
    if (listening.contains(socket)) left += fmt::format("listening socket {}\n", socket);
  }
  for (const auto& name : names_in("/dev/shm")) {
    if (!shared_memory_.contains(name) && !is_foreign_shared_memory(name)) left += fmt::format("/dev/shm/{}\n", name);
  }
  return left;
}

Deadline leftover_deadline() { return Deadline::after(std::chrono::seconds(20)); }

}  // namespace lockstep::testing
