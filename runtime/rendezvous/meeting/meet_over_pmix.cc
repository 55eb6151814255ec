// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <atomic>
#include <optional>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/meeting/pmix.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"

namespace lockstep::rendezvous {
namespace {

// For what the server knows already, and for what rank 0 is about to say.
constexpr std::chrono::milliseconds kAnswer{200};
constexpr std::chrono::seconds kSoon{2};
// How many attempts rank 0 may be ahead of another rank.
constexpr int kAhead = 4;

// A key can be put once, and is gone with the session that put it. Rank 0 numbers its stores; the others take the first
// that they have not been at, so that a rank whose attempt failed stays in step with one whose did not.
std::string key_of_store(int number) { return fmt::format("lockstep.store.{}", number); }

std::shared_ptr<OwnedStore> host(PmixSession& session, const MeetingPlan& plan, const Identity& identity,
                                 const Deadline& deadline) {
  static std::atomic<int> stores{0};
  const net::HostPort listen = is_one_host(identity) ? net::HostPort{"127.0.0.1", 0} : outward_address(plan);
  auto [owned, advertisement] = host_advertised_store(listen, plan, identity, deadline);
  session.publish(key_of_store(stores.fetch_add(1)), encode(advertisement));
  return owned;
}

std::optional<StoreAdvertisement> look_up(PmixSession& session, int number, const Deadline& deadline) {
  try {
    return decode_advertisement(session.lookup(0, key_of_store(number), deadline), "what rank 0 said through PMIx");
  } catch (const Timeout&) {
    return std::nullopt;
  }
}

std::shared_ptr<OwnedStore> connect_via_pmix(PmixSession& session, const MeetingPlan& plan, const Identity& identity,
                                             const Deadline& deadline) {
  static std::atomic<int> first{0};  // that this process has not been at
  std::string failure = "it has not said where its store is";
  do {
    const int begin = first;
    for (int number = begin; number < begin + kAhead; ++number) {
      const auto advertisement =
          look_up(session, number, number == begin ? deadline.sooner(kSoon) : deadline.sooner(kAnswer));
      if (!advertisement) continue;
      std::string why;
      if (auto owned = connect_via_advertisement(*advertisement, plan, identity, deadline.sooner(kProbe), why)) {
        first = number + 1;
        return owned;
      }
      failure = fmt::format("its store at {}: {}", advertisement->address.to_string(), why);
    }
  } while (!deadline.expired());
  throw Timeout(
      fmt::format("rendezvous: {} has not reached rank 0 through PMIx, {}: {}; look at rank 0's output, or set "
                  "LOCKSTEP_TIMEOUT (seconds) if rank 0 starts later",
                  whoami(identity), deadline.progress(), failure));
}

}  // namespace

std::shared_ptr<OwnedStore> meet_over_pmix(const MeetingPlan& plan, const Identity& identity,
                                           const Deadline& deadline) {
  std::shared_ptr<PmixSession> session = PmixSession::open();
  if (session->rank() != identity.rank) {
    throw Mismatch(
        fmt::format("rendezvous: {} (from {}) has another rank, {}, at the launcher's PMIx server; start the program "
                    "directly with mpirun, without another launcher between them",
                    whoami(identity), identity.source, session->rank()));
  }
  auto owned = identity.rank == 0 ? host(*session, plan, identity, deadline)
                                  : connect_via_pmix(*session, plan, identity, deadline);
  owned->session = std::move(session);
  return owned;
}

}  // namespace lockstep::rendezvous
