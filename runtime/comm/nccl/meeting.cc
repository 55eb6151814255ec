// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/meeting.h"

#include <fmt/format.h>

#include <vector>

#include "runtime/base/record.h"
#include "runtime/comm/nccl/api.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::nccl {
namespace {

constexpr auto kEquipmentFields = [](auto& gpu, auto& fields) {
  fields("nccl", gpu.nccl_version);
  fields("uuid", gpu.uuid);
};

}  // namespace

std::string verdict_on(std::span<const Equipment> ranks, const rendezvous::Roster& roster, bool may_share_gpus) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].nccl_version == ranks[0].nccl_version) continue;
    return fmt::format("{} has NCCL {} and {} has NCCL {}; install one version on all hosts, or set LOCKSTEP_NCCL_LIB",
                       roster[0].describe(), version_text(ranks[0].nccl_version), roster[r].describe(),
                       version_text(ranks[r].nccl_version));
  }
  if (may_share_gpus) return {};
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    for (std::size_t earlier = 0; earlier < r; ++earlier) {
      if (ranks[earlier].uuid != ranks[r].uuid) continue;
      return fmt::format(
          "{} and {} are both on {}; start one rank per GPU, or to try several on one, for correctness and not for "
          "speed, use lockstep run --oversubscribe-gpu",
          roster[earlier].describe(), roster[r].describe(), ranks[r].uuid);
    }
  }
  return {};
}

std::string compare_equipment(const Equipment& own, const GroupContext& context, bool may_share_gpus,
                              const Deadline& deadline) {
  rendezvous::Consensus consensus(*context.store, context.roster, context.identity.rank,
                                  {.name = "gpu",
                                   .what = "nccl: the ranks compare their GPUs",
                                   .remedy = "see that every rank runs and uses backend nccl, or raise the timeout"});
  const auto judge = [&](std::span<const std::string> texts) {
    std::vector<Equipment> all;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      const std::string what = fmt::format("nccl: the GPU of {}", context.roster[r].describe());
      all.push_back(require_record<Equipment>(texts[r], kEquipmentFields, what));
    }
    return verdict_on(all, context.roster, may_share_gpus);
  };
  return consensus.decide(write_record(own, kEquipmentFields), judge, deadline);
}

}  // namespace lockstep::nccl
