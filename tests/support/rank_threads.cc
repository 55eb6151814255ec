// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rank_threads.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/init/watched_group.h"
#include "runtime/store/hash_store.h"
#include "tests/support/groups.h"
#include "tests/support/thread_scopes.h"

namespace lockstep::testing {
namespace {

// What the threads tell the test.
struct Outcome {
  Mutex mutex;
  Condition changed;
  int running GUARDED_BY(mutex) = 0;
  int first_rank GUARDED_BY(mutex) = -1;
  bool first_is_consequence GUARDED_BY(mutex) = false;
  std::exception_ptr first GUARDED_BY(mutex);
};

std::vector<int> hosts_of(int ranks, const RankThreadsOptions& options) {
  std::vector<int> hosts = options.hosts;
  if (hosts.empty() && options.ranks_of_host > 0) {
    for (int left = ranks; left > 0; left -= options.ranks_of_host)
      hosts.push_back(std::min(left, options.ranks_of_host));
  }
  return hosts;
}

GroupContext context_for(int rank, int ranks, const std::shared_ptr<store::Store>& store, const Backend& backend,
                         const RankThreadsOptions& options) {
  GroupContext context;
  context.identity.rank = context.identity.local_rank = rank;
  context.identity.world_size = context.identity.local_world_size = ranks;
  context.identity.source = "threads of a test";
  for (int r = 0; r < ranks; ++r) context.roster.push_back({r, r, ::getpid(), host_name(), boot_id()});
  place_on_hosts(context.roster, hosts_of(ranks, options));
  context.store = store;
  context.scopes = scopes_over(*store);
  context.timeout = options.timeout;
  context.make_group = group_maker(backend, nullptr);
  if (backend.device == DeviceKind::cuda) context.device = {DeviceKind::cuda, rank};
  return context;
}

void run_rank(const GroupContext& context, const Backend& backend, const RankBody& body, const Deadline& deadline,
              Outcome& outcome) {
  std::exception_ptr error;
  bool consequence = false;
  try {
    body(backend.create(context, deadline));
  } catch (const PeerLost&) {
    error = std::current_exception();
    consequence = true;
  } catch (...) {
    error = std::current_exception();
  }
  MutexLock lock(outcome.mutex);
  if (error && (!outcome.first || (outcome.first_is_consequence && !consequence))) {
    outcome.first = error;
    outcome.first_rank = context.identity.rank;
    outcome.first_is_consequence = consequence;
  }
  --outcome.running;
  outcome.changed.notify_all();
}

void wait_for_all(Outcome& outcome, const Deadline& limit) {
  MutexLock lock(outcome.mutex);
  while (outcome.running > 0) {
    if (outcome.changed.wait_until(outcome.mutex, limit) || outcome.running == 0) continue;
    // Threads can't be ended; what hangs must not hang the suite.
    std::fprintf(stderr, "run_ranks: %d ranks still run, %s\n", outcome.running, limit.progress().c_str());
    std::abort();
  }
}

// As the first of these types that it is, else as an Error.
template <typename... Errors>
[[noreturn]] void throw_as(const std::exception& error, const std::string& text) {
  ((dynamic_cast<const Errors*>(&error) != nullptr ? throw Errors(text) : void()), ...);
  throw Error(text);
}

[[noreturn]] void rethrow(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    throw_as<PeerLost, Timeout, Mismatch, InvalidArgument, BackendUnavailable, StoreError, CorruptData>(
        e, fmt::format("rank {}: {}", rank, e.what()));
  }
}

}  // namespace

void run_ranks(int ranks, const RankBody& body, const RankThreadsOptions& options) {
  const auto found = std::find_if(backends().begin(), backends().end(),
                                  [&](const Backend& candidate) { return candidate.name == options.backend; });
  if (found == backends().end()) throw InvalidArgument("run_ranks: no backend '" + options.backend + "'");
  const Backend& backend = *found;
  const std::shared_ptr<store::Store> store = std::make_shared<store::HashStore>();
  if (const auto reason = backend.why_not(context_for(0, ranks, store, backend, options)); !reason.empty()) {
    throw BackendUnavailable(reason);
  }
  Outcome outcome;
  {
    MutexLock lock(outcome.mutex);
    outcome.running = ranks;
  }
  const Deadline limit = Deadline::after(options.limit);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Deadline start = options.start_timeout ? Deadline::after(*options.start_timeout) : limit;
      run_rank(context_for(rank, ranks, store, backend, options), backend, body, start, outcome);
    });
  }
  wait_for_all(outcome, limit);
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(outcome.mutex);
  if (outcome.first) rethrow(outcome.first, outcome.first_rank);
}

}  // namespace lockstep::testing
