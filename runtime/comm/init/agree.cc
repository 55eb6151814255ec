#include "runtime/comm/init/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "runtime/base/error.h"

namespace lockstep {
namespace {

// A backend and its reason per line, with a tab between them.
std::string lines_of(std::span<const Reason> reasons) {
  std::string text;
  for (const Reason& reason : reasons) {
    std::string line = reason.why_not;
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += reason.backend + '\t' + line + '\n';
  }
  return text;
}

// Why whoever wrote `text` can't take `backend`.
std::string reason_in(const std::string& text, const std::string& backend) {
  const std::size_t begin = ("\n" + text).find("\n" + backend + '\t');
  if (begin == std::string::npos) return "it asked for another backend";
  const std::size_t reason = begin + backend.size() + 1;
  return text.substr(reason, text.find('\n', reason) - reason);
}

}  // namespace

std::vector<Reason> agree_on_reasons(std::vector<Reason> own, const GroupContext& context, const Deadline& deadline) {
  const auto key = [](int rank) { return fmt::format("backend/{}", rank); };
  context.store->set(key(context.identity.rank), lines_of(own));
  if (std::all_of(own.begin(), own.end(), [](const Reason& reason) { return !reason.why_not.empty(); })) return own;
  std::vector<std::string> keys;
  for (const auto& member : context.roster) keys.push_back(key(member.rank));
  std::vector<std::string> texts;
  try {
    texts = context.store->multi_get(keys, deadline);
  } catch (const Timeout&) {
    std::string missing;
    for (const auto& member : context.roster) {
      const std::vector<std::string> one = {key(member.rank)};
      if (!context.store->check(one)) missing += (missing.empty() ? "" : ", ") + member.describe();
    }
    throw Timeout(
        fmt::format("init_process_group: the ranks choose a backend together, and {} did not come, {}; did it "
                    "ask for another backend?",
                    missing, deadline.progress()));
  }
  for (Reason& reason : own) {
    for (std::size_t r = 0; r < texts.size() && reason.why_not.empty(); ++r) {
      const std::string theirs = reason_in(texts[r], reason.backend);
      if (!theirs.empty()) reason.why_not = fmt::format("{}: {}", context.roster[r].describe(), theirs);
    }
  }
  return own;
}

}  // namespace lockstep
