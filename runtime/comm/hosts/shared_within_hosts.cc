// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/hosts/shared_within_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/shm/bootstrap.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/comm/wire/host_status_table.h"
#include "runtime/comm/wire/op_header_table.h"
#include "runtime/comm/wire/segment_counts.h"
#include "runtime/comm/wire/wire.h"
#include "runtime/rendezvous/consensus.h"
#include "runtime/store/prefix_store.h"

namespace lockstep {
namespace {

// The group over the wire has the deadlines, and its failure ends the waits of this one.
constexpr std::chrono::hours kNoTimeout{24 * 365};

// The context of a group of this host's ranks alone. Its members keep the names that messages give them.
GroupContext context_of_host(const GroupContext& context, const wire::Hosts& hosts) {
  GroupContext own = context;
  own.identity.rank = own.identity.local_rank = static_cast<int>(hosts.local);
  own.identity.world_size = own.identity.local_world_size = static_cast<int>(hosts.neighbours().size());
  own.roster.clear();
  for (const int rank : hosts.neighbours()) own.roster.push_back(context.roster[static_cast<std::size_t>(rank)]);
  own.store = std::make_shared<store::PrefixStore>(fmt::format("host/{}", hosts.host), context.store);
  own.timeout = kNoTimeout;
  own.on_throw = {};  // what befalls a rank is told by the group over the wire
  return own;
}

// Why this group failed the one over the wire knows better: it sees the same deaths, and has the deadlines.
template <typename Call>
auto unless_broken(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const BackendUnavailable&) {
    throw;
  } catch (const Error& error) {
    throw wire::Broken(fmt::format("the memory that the ranks of this host share: {}", error.what()));
  }
}

std::size_t bytes_of_windows(const wire::Hosts& hosts) { return hosts.neighbours().size() * wire::window_bytes(hosts); }

std::vector<std::shared_ptr<const EventFd>> event_fds(std::vector<UniqueFd> files) {
  std::vector<std::shared_ptr<const EventFd>> result;
  for (UniqueFd& file : files) result.push_back(std::make_shared<EventFd>(std::move(file)));
  return result;
}

class SharedWithinHost final : public wire::HostMemory {
 public:
  // `beside`: in the memory of `setup`, the windows, the op headers, the counts and then the status of the host.
  SharedWithinHost(GroupContext context, shm::SharedSetup setup, std::byte* beside, const wire::Hosts& hosts)
      : memory_(setup.control),
        windows_(beside),
        window_bytes_(wire::window_bytes(hosts)),
        op_headers_(beside + bytes_of_windows(hosts)),
        counts_(op_headers_ + wire::OpHeaderTable::bytes_for(hosts)),
        host_status_(counts_ + wire::SegmentCounts::bytes_for(hosts)),
        bell_files_(event_fds(std::move(setup.files))),
        group_(std::move(context), std::move(setup)) {}

  Arena allocate(std::size_t bytes) override {
    return unless_broken([&] { return group_.allocate(bytes); });
  }
  comm::ArenaOffset find(const ConstBufferView& buffer) override { return group_.place_of(buffer); }
  std::byte* address(std::size_t local, const comm::ArenaOffset& offset) override {
    return group_.address(static_cast<int>(local), offset);
  }
  std::byte* op_headers() override { return op_headers_; }
  std::byte* counts() override { return counts_; }
  std::byte* host_status() override { return host_status_; }
  std::span<const std::shared_ptr<const EventFd>> bell_files() override { return bell_files_; }
  std::byte* window(std::size_t local) override { return windows_ + local * window_bytes_; }
  void interrupt() override { group_.abort("the group over the wire has failed"); }

 private:
  const std::shared_ptr<shm::Mapping> memory_;
  std::byte* const windows_;  // in it
  const std::size_t window_bytes_;
  std::byte* const op_headers_;   // in it
  std::byte* const counts_;       // in it
  std::byte* const host_status_;  // in it
  const std::vector<std::shared_ptr<const EventFd>> bell_files_;
  shm::ProcessGroupShm group_;
};

}  // namespace

std::unique_ptr<wire::HostMemory> shared_within_hosts(const GroupContext& context, const Deadline& deadline) {
  const wire::Hosts hosts = wire::hosts_of(context.roster, context.identity.rank);
  if (!wire::has_hierarchy(hosts)) return nullptr;
  GroupContext of_host = context_of_host(context, hosts);
  std::optional<shm::SharedSetup> setup;
  std::byte* beside = nullptr;
  std::string problem;
  try {
    const std::size_t windows = bytes_of_windows(hosts);
    const std::size_t op_headers = wire::OpHeaderTable::bytes_for(hosts);
    const std::size_t counts = wire::SegmentCounts::bytes_for(hosts);
    const EventFd bell;
    setup = shm::set_up(
        of_host, deadline,
        {.bytes = windows + op_headers + counts + wire::HostStatusTable::bytes_for(hosts), .file = bell.fd()});
    beside = shm::memory_beside(*setup, of_host.roster.size());
    // The consensus that follows comes before every use of it.
    wire::OpHeaderTable::format(beside + windows, hosts);
    wire::SegmentCounts::format(beside + windows + op_headers, hosts);
    wire::HostStatusTable::format(beside + windows + op_headers + counts, hosts);
  } catch (const BackendUnavailable& error) {
    problem = error.what();
  }
  // A rank without it would wait for what the others carry for it in memory.
  rendezvous::Consensus consensus(*context.store, context.roster, context.identity.rank,
                                  {.name = "hosts",
                                   .what = "the ranks of each host set up memory to share",
                                   .remedy = "see whether they still run",
                                   .check = context.check});
  const auto first_problem = [&](std::span<const std::string> problems) {
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (!problems[rank].empty()) return fmt::format("{}: {}", context.roster[rank].describe(), problems[rank]);
    }
    return std::string();
  };
  const std::string why_not = consensus.decide(problem, first_problem, deadline);
  if (why_not.empty()) return std::make_unique<SharedWithinHost>(std::move(of_host), std::move(*setup), beside, hosts);
  if (context.identity.rank == 0) {
    log_warn(
        "the ranks of one host can't share memory: {}; they send each other everything over the network, which is "
        "slower; correct this cause to let them share memory",
        why_not);
  }
  return nullptr;
}

}  // namespace lockstep
