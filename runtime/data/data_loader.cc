// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "lockstep/trace/span.h"
#include "runtime/base/text.h"

namespace lockstep::data::detail {
namespace {

bool is_over_by(const IsOver& training_is_over) { return training_is_over && training_is_over(); }

// "12, 40, 41" or "12, 40, 41, 7, ... (64 in all)".
std::string id_list(std::span<const std::int64_t> ids) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ids.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ids[i]);
  if (ids.size() > kShown) text += fmt::format(", ... ({} in all)", ids.size());
  return text.empty() ? "none" : text;
}

// Throws what is being handled again, with `where` before its text.
[[noreturn]] void rethrow_from(const std::string& where) {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    std::throw_with_nested(InvalidArgument(where + error.what()));
  } catch (const CorruptData& error) {
    std::throw_with_nested(CorruptData(where + error.what()));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(where + error.what()));
  } catch (...) {
    std::throw_with_nested(Error(where + "something that is not a std::exception was thrown"));
  }
}

int window_of(const LoaderOptions& options, std::int64_t count) {
  const std::int64_t wanted = std::int64_t{options.workers} * options.prefetch;
  return static_cast<int>(std::min({wanted, count, std::int64_t{std::numeric_limits<int>::max()}}));
}

}  // namespace

LoaderCore::LoaderCore(ReadBatch read, Announce announce, std::shared_ptr<Sampler> sampler,
                       const LoaderOptions& options)
    : read_(std::move(read)), announce_(std::move(announce)), sampler_(std::move(sampler)), options_(options) {
  const std::string problem = first_too_small(
      {{"workers", options.workers, 0}, {"prefetch", options.prefetch, 1}, {"read_ahead", options.read_ahead, 0}});
  if (!problem.empty()) throw InvalidArgument("DataLoader: " + problem);
  if (sampler_->has_audits()) {
    throw InvalidArgument(
        "DataLoader: audit_every is set, and only LibTorch's engine audits; leave audit_every out, or take "
        "lockstep::libtorch::DataLoader");
  }
}

LoaderCore::Pass::Pass(OrderedPrefetch::Produce produce, std::int64_t count, const LoaderOptions& options,
                       std::shared_ptr<std::int64_t> handed, std::shared_ptr<const IsOver> training_is_over)
    : handed_(std::move(handed)),
      training_is_over_(std::move(training_is_over)),
      prefetch_(std::move(produce), count, options.workers, window_of(options, count), options.timeout) {
  *handed_ = 0;
}

OrderedPrefetch::Item LoaderCore::Pass::next() {
  if (is_over_by(*training_is_over_)) {
    is_over_ = true;
    return nullptr;
  }
  // A batch that could not be read is behind the program too.
  struct Count {
    Pass& pass;
    ~Count() { *pass.handed_ = pass.prefetch_.position(); }
  } const count{*this};
  const trace::Span span(trace::SpanKind::data);
  OrderedPrefetch::Item item = prefetch_.next();
  is_over_ = item == nullptr;
  return item;
}

void LoaderCore::require_no_pass(const char* call) const {
  const auto running = running_.lock();
  if (!running || running->is_over()) return;
  throw InvalidArgument(
      fmt::format("DataLoader: {} was called in the middle of epoch {} (batch {} of {}); leave the loop over the "
                  "loader first, for a loader has one pass at a time",
                  call, epoch(), *handed_, sampler_->num_batches()));
}

std::int64_t LoaderCore::batches_in_pass() const {
  const auto running = running_.lock();
  const bool is_rest = running && !running->is_over() ? true : is_resumed_ && is_asked_for_;
  return is_rest ? sampler_->num_batches() : num_batches();
}

void LoaderCore::set_epoch(std::int64_t to) {
  require_no_pass("set_epoch()");
  if (is_over_by(*training_is_over_)) return;
  if (is_resumed_ && to == epoch()) {
    is_asked_for_ = true;
    return;
  }
  sampler_->set_epoch(to);
  is_resumed_ = false;
  is_asked_for_ = true;
  *handed_ = 0;
}

void LoaderCore::resume(const SamplerState& state) {
  require_no_pass("resume()");
  sampler_->resume(state);
  is_resumed_ = true;
  is_asked_for_ = state.consumed < state.length;  // else nothing is left of its epoch
  *handed_ = 0;
}

std::shared_ptr<LoaderCore::Pass> LoaderCore::start() {
  require_no_pass("begin()");
  if (is_over_by(*training_is_over_)) return nullptr;
  if (!std::exchange(is_asked_for_, false)) {
    sampler_->set_epoch(epoch() + 1);
  } else if (!is_resumed_) {
    sampler_->set_epoch(epoch());
  }
  is_resumed_ = false;
  auto produce = [read = read_, announce = announce_, sampler = sampler_, ahead = options_.read_ahead,
                  count = sampler_->num_batches(), of = epoch()](std::int64_t index) {
    if (announce && ahead > 0) {
      // The first one also announces itself and those up to the one that is so far ahead.
      const std::int64_t last = std::min(index + ahead, count - 1);
      for (std::int64_t i = index == 0 ? 0 : index + ahead; i <= last; ++i) announce(sampler->batch(i));
    }
    const std::vector<std::int64_t> ids = sampler->batch(index);
    try {
      return read(ids);
    } catch (...) {
      rethrow_from(fmt::format("data: reading batch {} of epoch {} (samples {}) failed: ", index, of, id_list(ids)));
    }
  };
  const std::shared_ptr<Pass> pass =
      make_owned_here<Pass>(std::move(produce), sampler_->num_batches(), options_, handed_, training_is_over_);
  running_ = pass;
  return pass;
}

}  // namespace lockstep::data::detail
