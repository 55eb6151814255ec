// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/choose_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "runtime/comm/init/agree.h"

namespace lockstep {
namespace {

// Names that mean something in this field, so that asking for one is not a spelling mistake.
constexpr std::array<std::string_view, 2> kKnownElsewhere = {"nccl", "ucc"};

std::string names(std::span<const Backend> candidates) {
  std::vector<std::string> result = {"auto"};
  for (const Backend& backend : candidates) result.push_back(backend.name);
  return fmt::format("{}", fmt::join(result, ", "));
}

// What PyTorch calls the backend that carries tensors of the CPU between hosts.
std::string_view own_name(std::string_view name) { return name == "gloo" ? "tcp" : name; }

const Backend* find(std::string_view asked_for, std::span<const Backend> candidates) {
  const std::string_view name = own_name(asked_for);
  const auto found = std::ranges::find(candidates, name, &Backend::name);
  return found == candidates.end() ? nullptr : &*found;
}

}  // namespace

void require_known_backend(std::string_view name, std::span<const Backend> candidates, std::string_view asked_by) {
  if (name == "auto" || find(name, candidates) != nullptr) return;
  if (std::find(kKnownElsewhere.begin(), kKnownElsewhere.end(), name) != kKnownElsewhere.end()) {
    throw BackendUnavailable(
        fmt::format("{}: backend '{}' was asked for and this build doesn't have it; pass one of: {}", asked_by, name,
                    names(candidates)));
  }
  throw InvalidArgument(fmt::format("{}: backend '{}' is unknown; pass one of: {}", asked_by, name, names(candidates)));
}

namespace {

// The reason without its remedy: that is for who asked for this one.
void pass_over(std::string& passed_over, const std::string& reason) {
  passed_over += (passed_over.empty() ? "" : "; ") + reason.substr(0, reason.find(';'));
}

}  // namespace

BackendChoice choose_backend(std::string_view name, std::span<const Backend> candidates, const GroupContext& context,
                             const Deadline& deadline) {
  require_known_backend(name, candidates);
  const auto why_not = [&](const Backend& backend) -> std::string {
    if (backend.device == context.device.kind) return backend.why_not(context);
    const bool is_for_cpus = backend.device == DeviceKind::cpu;
    return fmt::format("backend '{}' computes on {}, this rank's device is {}; use device '{}', or another backend",
                       backend.name, is_for_cpus ? "the CPU" : "GPUs", context.device.str(),
                       is_for_cpus ? "cpu" : "cuda");
  };
  if (name != "auto") {
    const Backend* const backend = find(name, candidates);
    std::string reason = why_not(*backend);
    if (backend->must_agree)
      reason = agree_on_reasons("backend", {{backend->name, reason}}, context, deadline).front().why_not;
    if (reason.empty()) return {.backend = backend, .why = "asked for"};
    throw BackendUnavailable(
        fmt::format("init_process_group: backend '{}' was asked for, and can't be used: {}. Pass backend 'auto' to let "
                    "lockstep choose one",
                    name, reason));
  }
  std::string passed_over;
  std::vector<Reason> to_agree;
  for (const Backend& backend : candidates) {
    if (backend.device != context.device.kind) continue;
    const std::string reason = backend.why_not(context);
    if (backend.must_agree || !to_agree.empty()) {  // what comes after a plug-in is for those that can't have it
      to_agree.push_back({backend.name, reason});
      continue;
    }
    if (reason.empty()) return {.backend = &backend, .why = passed_over.empty() ? "auto" : "auto; " + passed_over};
    if (backend.name != "single") pass_over(passed_over, reason);  // of several ranks nobody expects it
  }
  std::string remedies;
  if (!to_agree.empty()) to_agree = agree_on_reasons("backend", std::move(to_agree), context, deadline);
  for (const Reason& reason : to_agree) {
    if (reason.why_not.empty()) {
      return {.backend = find(reason.name, candidates), .why = passed_over.empty() ? "auto" : "auto; " + passed_over};
    }
    pass_over(passed_over, reason.why_not);
    remedies += (remedies.empty() ? "" : ". Or: ") + reason.why_not;
  }
  if (rendezvous::count_hosts(context.roster) > 1 && context.device.kind == DeviceKind::cpu) {
    throw BackendUnavailable(
        fmt::format("init_process_group: the ranks are on {} hosts ({}), and no backend that works across hosts can be "
                    "used: {}; make one of these backends usable, or start all ranks on one host",
                    rendezvous::count_hosts(context.roster), rendezvous::describe_hosts(context.roster),
                    remedies.empty() ? passed_over : remedies));
  }
  throw BackendUnavailable(
      fmt::format("init_process_group: no backend can serve these {} ranks: {}; ask for a backend by name, and the "
                  "error will say what that backend needs",
                  context.roster.size(), passed_over));
}

void announce_backend(std::string_view name, const GroupContext& context) {
  if (context.roster.size() == 1) return;
  const rendezvous::Member& self = context.roster[static_cast<std::size_t>(context.identity.rank)];
  const std::string own = fmt::format("'{}' by {}", own_name(name), self.describe());
  const std::string first = context.store->compare_set("backend/first", "", own);
  if (first.substr(0, first.find(' ')) == own.substr(0, own.find(' '))) return;
  throw Mismatch(fmt::format(
      "init_process_group: the ranks ask for different backends: {}, {}; give all ranks the same backend, or 'auto'",
      first, own));
}

}  // namespace lockstep
