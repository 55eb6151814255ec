#include "runtime/comm/init/choose_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.h"

namespace lockstep {
namespace {

// Names that mean something in this field, so that asking for one is no spelling mistake.
constexpr std::array<std::string_view, 4> kKnownElsewhere = {"nccl", "gloo", "mpi", "ucc"};

std::string names(std::span<const Backend> candidates) {
  std::vector<std::string> result = {"auto"};
  for (const Backend& backend : candidates) result.push_back(backend.name);
  return fmt::format("{}", fmt::join(result, ", "));
}

const Backend* find(std::string_view name, std::span<const Backend> candidates) {
  const auto found =
      std::find_if(candidates.begin(), candidates.end(), [&](const Backend& backend) { return backend.name == name; });
  return found == candidates.end() ? nullptr : &*found;
}

}  // namespace

void require_known_backend(std::string_view name, std::span<const Backend> candidates) {
  if (name == "auto" || find(name, candidates) != nullptr) return;
  if (std::find(kKnownElsewhere.begin(), kKnownElsewhere.end(), name) != kKnownElsewhere.end()) {
    throw BackendUnavailable(
        fmt::format("init_process_group: backend '{}' was asked for and this build doesn't have it; pass one of: {}",
                    name, names(candidates)));
  }
  throw InvalidArgument(
      fmt::format("init_process_group: backend '{}' is unknown; pass one of: {}", name, names(candidates)));
}

BackendChoice choose_backend(std::string_view name, std::span<const Backend> candidates, const GroupContext& context) {
  require_known_backend(name, candidates);
  if (name != "auto") {
    const Backend* const backend = find(name, candidates);
    const std::string reason = backend->why_not(context);
    if (reason.empty()) return {.backend = backend, .why = "asked for"};
    throw BackendUnavailable(fmt::format("init_process_group: backend '{}' was asked for: {}", name, reason));
  }
  std::string passed_over;
  for (const Backend& backend : candidates) {
    const std::string reason = backend.why_not(context);
    if (reason.empty()) {
      return {.backend = &backend, .why = passed_over.empty() ? "auto" : "auto; " + passed_over};
    }
    // The reason without its remedy: that is for who asked for this one.
    passed_over += (passed_over.empty() ? "" : "; ") + reason.substr(0, reason.find(';'));
  }
  if (rendezvous::count_hosts(context.roster) > 1) {
    throw BackendUnavailable(
        fmt::format("init_process_group: the ranks are on {} hosts ({}), and this build has no backend "
                    "that works across hosts; start all ranks on one",
                    rendezvous::count_hosts(context.roster), rendezvous::describe_hosts(context.roster)));
  }
  throw BackendUnavailable(
      fmt::format("init_process_group: no backend can serve these {} ranks: {}", context.roster.size(), passed_over));
}

}  // namespace lockstep
