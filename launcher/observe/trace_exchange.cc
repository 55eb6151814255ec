// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/trace_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "launcher/base/system.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

// Values of a want key that end the exchange.
constexpr std::string_view kTaken = "taken";
constexpr std::string_view kLeft = "left";
// Limit for the offers: all launchers learn at about the same time that the job is over.
constexpr std::chrono::seconds kOffersCome{5};
// Limit for one file, so that a slow host does not use up the others' time.
constexpr std::chrono::seconds kOneFile{5};

std::string key(int node, std::string_view what) { return fmt::format("traces/{}/{}", node, what); }
std::string want_key(int node, int k) { return key(node, fmt::format("want/{}", k)); }
std::string file_key(int node, int k) { return key(node, fmt::format("file/{}", k)); }

// Waits for the key's value; returns nullopt if the exchange is called off. Throws Timeout.
std::optional<std::string> await(store::Store& store, const std::string& name, const Deadline& deadline,
                                 const ExchangeLimits& limits) {
  if (!limits.is_called_off) return store.get(name, deadline);
  while (!limits.is_called_off()) {
    try {
      return store.get(name, deadline.sooner(limits.look));
    } catch (const Timeout&) {
      if (deadline.expired()) throw;
    }
  }
  return std::nullopt;
}

}  // namespace

bool give_traces(store::Store& store, int node_rank, const fs::path& folder, const std::vector<TraceFile>& files,
                 const ExchangeLimits& limits) {
  std::string offer;
  for (const TraceFile& file : files) offer += file.name() + "\n";
  store.set(key(node_rank, "offer"), offer);
  for (int k = 0;; ++k) {
    const auto wanted = await(store, want_key(node_rank, k), limits.deadline, limits);
    if (!wanted) return false;
    store.erase(want_key(node_rank, k));
    if (*wanted == kTaken || *wanted == kLeft) return *wanted == kTaken;
    const auto file = TraceFile::of_name(*wanted);
    const bool is_ours = file && std::find(files.begin(), files.end(), *file) != files.end();
    std::string bytes;
    try {
      if (is_ours) bytes = read_regular(folder / *wanted, store::kMaxValueBytes);
    } catch (const Error& error) {
      log_warn("{}", error.what());
    }
    store.set(file_key(node_rank, k), bytes);
  }
}

TakenTraces::TakenTraces(store::Store& store, int nodes) : store_(store), hosts_(static_cast<std::size_t>(nodes)) {}

void TakenTraces::take(const fs::path& folder, const std::vector<TraceFile>& own, const ExchangeLimits& limits) {
  const Deadline offers = limits.deadline.sooner(kOffersCome);
  for (int node = 1; node < static_cast<int>(hosts_.size()); ++node) {
    try {
      const auto offer = await(store_, key(node, "offer"), offers, limits);
      if (!offer) return;
      store_.erase(key(node, "offer"));
      if (!take_of(node, *offer, folder, own, limits)) return;
      hosts_[static_cast<std::size_t>(node)].is_there = true;
    } catch (const Timeout&) {
      log_warn(
          "the traces of the host with node rank {} did not come, so the timeline lacks that host's ranks; look at "
          "what the launcher of that host wrote",
          node);
    }
  }
}

bool TakenTraces::take_of(int node, std::string_view offer, const fs::path& folder, const std::vector<TraceFile>& own,
                          const ExchangeLimits& limits) {
  int& k = hosts_[static_cast<std::size_t>(node)].next;
  while (!offer.empty()) {
    const auto file = TraceFile::of_name(take_word(offer, '\n'));
    if (!file || std::find(own.begin(), own.end(), *file) != own.end()) continue;
    const int asked = k++;  // incremented before the wait: the end of the exchange is written behind this question
    store_.set(want_key(node, asked), file->name());
    const auto bytes = await(store_, file_key(node, asked), limits.deadline.sooner(kOneFile), limits);
    if (!bytes) return false;
    store_.erase(file_key(node, asked));
    if (bytes->empty()) continue;  // the host can't read the file
    const fs::path path = folder / file->name();
    std::error_code made;
    fs::create_directories(path.parent_path(), made);
    if (made) throw SystemError("make the folder " + path.parent_path().native(), made.value());
    write_file(path.native(), *bytes);
  }
  return true;
}

void TakenTraces::end(Has timeline) {
  for (int node = 1; node < static_cast<int>(hosts_.size()); ++node) {
    const Host& host = hosts_[static_cast<std::size_t>(node)];
    const bool has = timeline == Has::all || (timeline == Has::those_there && host.is_there);
    store_.set(want_key(node, host.next), has ? kTaken : kLeft);
  }
}

}  // namespace lockstep::launcher
