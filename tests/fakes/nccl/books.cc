// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/books.h"

#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tests/fakes/nccl/fake_nccl.h"

namespace lockstep::fake_nccl {
namespace {

// More than a test looks at; what is older goes.
constexpr std::size_t kKeptCalls = 100000;

Effect effect_named(const std::string& name, const std::string& rule) {
  static const std::map<std::string, Effect> all = {
      {"hang", Effect::hang},   {"error", Effect::error}, {"remote", Effect::remote}, {"flaky", Effect::flaky},
      {"block", Effect::block}, {"wait", Effect::wait},   {"early", Effect::early},   {"wrong", Effect::wrong}};
  const auto found = all.find(name);
  if (found == all.end()) throw std::invalid_argument("fake nccl: no effect '" + name + "' in " + rule);
  return found->second;
}

}  // namespace

// Never destroyed: threads of the fake may outlive main().
Books& Books::get() {
  static Books* const books = new Books;
  return *books;
}

Books::Books() : version_(NCCL_VERSION_CODE) {
  const char* const rules = std::getenv("LOCKSTEP_FAKE_NCCL");
  if (rules == nullptr) return;
  try {
    add_rules(rules);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();  // a test that asks for a wrong thing must not pass
  }
}

void Books::add_rules(std::string_view text) {
  static const std::regex form(R"((\w+)=(\w+)(?:@(\d+))?(?::(rank|gpu)(\d+))?)");
  const std::lock_guard lock(mutex_);
  std::istringstream all{std::string(text)};
  for (std::string rule; std::getline(all, rule, ';');) {
    std::smatch part;
    if (rule.empty()) continue;
    if (!std::regex_match(rule, part, form)) throw std::invalid_argument("fake nccl: no rule is '" + rule + "'");
    if (part[1] == "version") {
      version_ = std::stoi(part[2]);
      continue;
    }
    Rule result{.call = part[1], .effect = effect_named(part[2], rule)};
    if (part[3].matched) result.number = std::stoi(part[3]);
    if (part[4].matched) (part[4] == "rank" ? result.rank : result.gpu) = std::stoi(part[5]);
    rules_.push_back(result);
  }
}

void Books::clear_rules() {
  const std::lock_guard lock(mutex_);
  rules_.clear();
  version_ = NCCL_VERSION_CODE;
  ++times_cleared_;
  cleared_.notify_all();
}

void Books::hold(Effect effect) {
  while (effect == Effect::block) ::pause();
  if (effect != Effect::wait) return;
  std::unique_lock lock(mutex_);
  const std::uint64_t before = times_cleared_;
  cleared_.wait(lock, [&] { return times_cleared_ != before; });
}

Effect Books::effect_of(const std::string& call, int number, int rank, int gpu) {
  const std::lock_guard lock(mutex_);
  for (const Rule& rule : rules_) {
    const bool applies = rule.call == call && (rule.number == 0 || rule.number == number);
    if (applies && (rule.rank < 0 || rule.rank == rank) && (rule.gpu < 0 || rule.gpu == gpu)) return rule.effect;
  }
  return Effect::none;
}

int Books::version() {
  const std::lock_guard lock(mutex_);
  return version_;
}

void Books::called(std::string text) {
  const std::lock_guard lock(mutex_);
  if (calls_.size() >= kKeptCalls) calls_.clear();
  calls_.push_back(std::move(text));
}

std::vector<std::string> Books::take_calls() {
  const std::lock_guard lock(mutex_);
  return std::exchange(calls_, {});
}

void Books::violation(const std::string& text) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(text);
  if (collecting_) return;
  std::fprintf(stderr, "fake nccl: violation: %s\n", text.c_str());
  std::abort();
}

void Books::collect(bool collecting) {
  const std::lock_guard lock(mutex_);
  collecting_ = collecting;
}

std::vector<std::string> Books::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

void inject(std::string_view rule) { Books::get().add_rules(rule); }
void heal() { Books::get().clear_rules(); }
std::vector<std::string> take_calls() { return Books::get().take_calls(); }

Violations::Violations() { Books::get().collect(true); }
Violations::~Violations() { Books::get().collect(false); }
std::vector<std::string> Violations::take() { return Books::get().take_violations(); }

}  // namespace lockstep::fake_nccl
