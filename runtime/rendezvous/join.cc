// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/logging.h"
#include "runtime/base/process_token.h"
#include "runtime/rendezvous/published_roster.h"
#include "runtime/rendezvous/records.h"
#include "runtime/rendezvous/verdict.h"

namespace lockstep::rendezvous {
namespace {

// Time limit of a request whose answer is there already, after the job's own deadline has passed.
constexpr std::chrono::seconds kOneRequest{2};
// Between a process's registration and its claim.
constexpr std::chrono::seconds kClaimFollows{10};
// In one request. A claim has at most some hundred bytes.
constexpr std::size_t kMostClaims = 4096;
// Neither a claim nor a verdict.
constexpr std::string_view kNothing = "-";

// One meeting's keys.
struct Keys {
  std::string scope;
  std::string claim(int rank) const { return fmt::format("{}/rank/{}", scope, rank); }
  std::string count() const { return scope + "/count"; }  // of claims that agree on the world size
  std::string world() const { return scope + "/world"; }
  std::string verdict() const { return scope + "/verdict"; }
  std::string roster(int part) const { return fmt::format("{}/roster/{}", scope, part); }
};

Keys keys_of_round(const Identity& identity, int round) {
  return {fmt::format("{}{}", attempt_prefix(identity.run_id, identity.restart_count), round)};
}

// Claims of a job of any size, in requests that a store takes.
std::vector<std::string> read_claims(store::Store& store, std::span<const std::string> claims,
                                     const Deadline& deadline) {
  std::vector<std::string> texts;
  while (!claims.empty()) {
    const auto some = claims.first(std::min(claims.size(), kMostClaims));
    for (std::string& text : store.multi_get(some, deadline)) texts.push_back(std::move(text));
    claims = claims.subspan(some.size());
  }
  return texts;
}

// Tells every rank of this meeting, unless another cause was first: then that one is thrown.
[[noreturn]] void fail(store::Store& store, const Keys& keys, const std::string& message) {
  require_agreed(store.compare_set(keys.verdict(), "", std::string(kMismatch) + message), keys.verdict());
  throw Mismatch(message);  // the others had met before this process came
}

// The value at `key`, if there is one, without waiting.
std::optional<std::string> peek(store::Store& store, const std::string& key) {
  std::string value = store.compare_set(key, kNothing, kNothing);
  if (value == kNothing) return std::nullopt;
  return value;
}

[[noreturn]] void report_duplicate(store::Store& store, const Keys& keys, const Identity& identity, const Claim& holder,
                                   const Claim& own) {
  fail(store, keys,
       fmt::format(
           "init_process_group: two processes are rank {} of {}: {} and {}; give each process its own RANK, and {}",
           identity.rank, identity.world_size, holder.member.describe(), own.member.describe(),
           identity.store_address.empty()
               ? "let an earlier run end before the next one uses the same address"
               : "each job at this store its own LOCKSTEP_RUN_ID, which is free again once all "
                 "processes of an earlier start have ended"));
}

// This process could not come in. Throws why, if the store knows: another process is this rank, or the round has failed
// and its store's host has gone.
void explain_refusal(store::Store& store, const Keys& keys, const Identity& identity, const Claim& own,
                     const Deadline& deadline) {
  std::optional<std::string> verdict;
  std::optional<std::string> holder;
  const std::string key = keys.claim(identity.rank);
  try {
    verdict = peek(store, keys.verdict());
    if (!verdict || verdict->starts_with(kAgreed)) holder = store.get(key, deadline.sooner(kClaimFollows));
  } catch (const Error& error) {  // the refusal itself is what is known
    log_debug("init_process_group: why rank {} could not join is not known: {}", identity.rank, error.what());
    return;
  }
  if (verdict) require_agreed(*verdict, keys.verdict());
  if (!holder) return;
  const Claim other = decode_claim(*holder, key);
  if (other.process != own.process) report_duplicate(store, keys, identity, other, own);
}

void enter(const OnPlace& on_place, store::Store& store, const Keys& keys, const Identity& identity, const Claim& own,
           const Deadline& deadline) {
  if (!on_place) return;
  try {
    on_place(keys.scope);
  } catch (const SystemError&) {
    throw;  // this process has no thread or descriptor for it: nobody refused it
  } catch (const Error&) {
    explain_refusal(store, keys, identity, own, deadline);
    throw;
  }
}

void agree_on_world_size(store::Store& store, const Keys& keys, const Identity& identity, const Member& self) {
  const std::string mine = fmt::format("{} said by {}", identity.world_size, self.describe());
  const std::string first = store.compare_set(keys.world(), "", mine);
  const auto size = parse_int(std::string_view(first).substr(0, first.find(' ')));
  if (size == identity.world_size) return;
  fail(store, keys,
       fmt::format("init_process_group: ranks disagree on the world size: {}, {}; give all ranks the same WORLD_SIZE",
                   first, mine));
}

// A round that has failed for this process is over for it: a later join() of it is another round's.
void use_up(store::Store& store, const std::string& key, const std::string& claim) {
  try {
    store.compare_set(key, "", claim);
  } catch (const Error& error) {  // where the store has gone, so have its rounds
    log_debug("join: '{}' is left free: {}", key, error.what());
  }
}

// Takes this rank's place in the first round in which this process has none yet. `on_place` comes first: a process that
// can see the claim can also see the end of the claimant.
Keys take_place(store::Store& store, const Identity& identity, const Claim& claim, const OnPlace& on_place,
                const Deadline& deadline) {
  const std::string text = encode(claim);
  for (int round = 0;; ++round) {
    const Keys keys = keys_of_round(identity, round);
    const std::string key = keys.claim(identity.rank);
    std::optional<std::string> standing = peek(store, key);
    if (!standing) {
      try {
        agree_on_world_size(store, keys, identity, claim.member);
        enter(on_place, store, keys, identity, claim, deadline);
      } catch (const Error&) {
        use_up(store, key, text);
        throw;
      }
      standing = store.compare_set(key, "", text);
      if (*standing == text) return keys;
    }
    const Claim holder = decode_claim(*standing, key);
    if (holder.process != claim.process) report_duplicate(store, keys, identity, holder, claim);
  }
}

// For a deadline that has passed. Returns if the last rank came just now. Three requests, however many ranks there are:
// they all come here at once.
void report_missing(store::Store& store, const Keys& keys, const Identity& identity, const Deadline& deadline) {
  std::vector<std::string> stored;
  try {
    stored = store.list_keys();
  } catch (const StoreError& error) {  // for one, more keys of other jobs than a reply may have
    const std::string message = fmt::format(
        "init_process_group: not all {} ranks came, {}; which did is not known: {}; set LOCKSTEP_TIMEOUT (seconds) if "
        "they start later",
        identity.world_size, deadline.progress(), error.what());
    require_agreed(store.compare_set(keys.verdict(), "", std::string(kTimedOut) + message), keys.verdict());
    return;
  }
  const auto is_there = [&](const std::string& key) { return std::binary_search(stored.begin(), stored.end(), key); };
  if (is_there(keys.verdict())) {
    require_agreed(store.get(keys.verdict(), Deadline::after(kOneRequest)), keys.verdict());
    return;
  }
  std::vector<int> missing;
  std::vector<std::string> claims;
  for (int rank = 0; rank < identity.world_size; ++rank) {
    if (is_there(keys.claim(rank))) {
      claims.push_back(keys.claim(rank));
    } else {
      missing.push_back(rank);
    }
  }
  Roster here;
  const auto texts = read_claims(store, claims, Deadline::after(kOneRequest));
  for (std::size_t i = 0; i < texts.size(); ++i) here.push_back(decode_claim(texts[i], claims[i]).member);
  std::string message;
  if (missing.empty()) {
    message = fmt::format(
        "init_process_group: all {} ranks came, but the last of them stopped before it could say so, {}; look for the "
        "first error in their output; here: {}",
        identity.world_size, deadline.progress(), describe_members(here));
  } else {
    message = fmt::format(
        "init_process_group: {} of {} did not come, {}; here: {}; start what is missing, correct WORLD_SIZE, give all "
        "the same LOCKSTEP_STORE_SECRET if you set one, or set LOCKSTEP_TIMEOUT (seconds) if they start later",
        describe_ranks(missing), identity.world_size, deadline.progress(), describe_members(here));
  }
  require_agreed(store.compare_set(keys.verdict(), "", std::string(kTimedOut) + message), keys.verdict());
}

// The roster that all ranks' claims make.
Roster roster_of_claims(store::Store& store, const Keys& keys, const Identity& identity, const Deadline& deadline) {
  std::vector<std::string> claims;
  for (int rank = 0; rank < identity.world_size; ++rank) claims.push_back(keys.claim(rank));
  const auto texts = read_claims(store, claims, deadline);
  Roster roster;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    roster.push_back(decode_claim(texts[i], claims[i]).member);
    if (roster.back().rank != static_cast<int>(i)) {
      throw CorruptData(fmt::format(
          "join: store key '{}' must hold the claim of rank {}, but holds that of rank {}; give each process its own "
          "RANK, and run the same build of lockstep on all ranks",
          claims[i], i, roster.back().rank));
    }
  }
  return roster;
}

// For the last rank to come: leaves the roster to the others, and releases them.
void complete(store::Store& store, const Keys& keys, const Identity& identity, const Deadline& deadline) {
  std::string verdict;
  try {
    const auto parts = publish(roster_of_claims(store, keys, identity, deadline));
    // The parts before the verdict: a rank that has the verdict reads them without a wait.
    for (std::size_t i = 0; i < parts.size(); ++i) store.set(keys.roster(static_cast<int>(i)), parts[i]);
    verdict = fmt::format("{}{}", kAgreed, parts.size());
  } catch (const CorruptData& error) {
    verdict = fmt::format("{}{}", kCorrupt, error.what());
  }
  store.compare_set(keys.verdict(), "", verdict);
}

// Once all are here. Throws what else the verdict says.
std::string await_verdict(store::Store& store, const Keys& keys, const Identity& identity, const Deadline& deadline) {
  std::string verdict;
  try {
    verdict = store.get(keys.verdict(), deadline);
  } catch (const Timeout&) {
    report_missing(store, keys, identity, deadline);
    verdict = store.get(keys.verdict(), Deadline::after(kOneRequest));
  }
  require_agreed(verdict, keys.verdict());
  return verdict;
}

Roster published_roster(store::Store& store, const Keys& keys, std::string_view verdict, const Identity& identity,
                        const Deadline& deadline) {
  const auto count = parse_int(verdict.substr(kAgreed.size()));
  std::vector<std::string> parts;
  for (int part = 0; count && part < *count; ++part) parts.push_back(store.get(keys.roster(part), deadline));
  Roster roster = read_published(parts, keys.roster(0));
  if (roster.size() == static_cast<std::size_t>(identity.world_size)) return roster;
  throw CorruptData(fmt::format(
      "join: store key '{}' holds a roster of {} ranks, and this rank wants {}; give every rank the same world size",
      keys.roster(0), roster.size(), identity.world_size));
}

void fill_in(Identity& identity, Roster& roster) {
  std::map<std::pair<std::string_view, std::string_view>, int> on_host;
  for (Member& member : roster) {
    const int before = on_host[{member.boot_id, member.network}]++;
    if (member.local_rank < 0) member.local_rank = before;
  }
  if (!identity.local_rank_known) identity.local_rank = roster[static_cast<std::size_t>(identity.rank)].local_rank;
  if (!identity.local_world_size_known) {
    identity.local_world_size = static_cast<int>(ranks_beside(roster, identity.rank).size());
  }
  if (!identity.node_rank) identity.node_rank = host_index(roster, identity.rank);
}

}  // namespace

std::string run_prefix(const std::string& run_id) {
  return fmt::format("rendezvous/{}/", run_id.empty() ? "-" : run_id);
}

std::string attempt_prefix(const std::string& run_id, int restart_count) {
  return fmt::format("{}{}/", run_prefix(run_id), restart_count);
}

Member self_member(const Identity& identity) {
  return {.rank = identity.rank,
          .local_rank = identity.local_rank_known ? identity.local_rank : -1,
          .pid = getpid(),
          .host = host_name(),
          .boot_id = boot_id(),
          .network = network_namespace()};
}

Joined join(store::Store& store, Identity& identity, const Member& self, const Deadline& deadline,
            const OnPlace& on_place) {
  static std::atomic<int> claims_of_process{0};
  const Claim claim{.member = self,
                    .world_size = identity.world_size,
                    .process = fmt::format("{:016x}", process_token()),
                    .serial = claims_of_process.fetch_add(1)};
  const Keys keys = take_place(store, identity, claim, on_place, deadline);

  // Counted, so that a job of n ranks doesn't ask for n * n keys.
  if (store.add(keys.count(), 1) == identity.world_size) complete(store, keys, identity, deadline);
  const std::string verdict = await_verdict(store, keys, identity, deadline);
  Joined joined{.roster = {}, .scope = keys.scope};
  joined.roster =
      published_roster(store, keys, verdict, identity, deadline.expired() ? Deadline::after(kOneRequest) : deadline);
  fill_in(identity, joined.roster);
  return joined;
}

std::string claimant_of(store::Store& store, const Identity& identity, int rank, const Deadline& deadline) {
  const std::string key = keys_of_round(identity, 0).claim(rank);
  return decode_claim(store.get(key, deadline), key).member.describe();
}

}  // namespace lockstep::rendezvous
