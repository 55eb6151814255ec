#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"

namespace lockstep::data::detail {
namespace {

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
    std::throw_with_nested(Error(where + "something that is no std::exception was thrown"));
  }
}

}  // namespace

LoaderCore::LoaderCore(ReadBatch read, std::shared_ptr<Sampler> sampler, const LoaderOptions& options)
    : read_(std::move(read)), sampler_(std::move(sampler)), options_(options) {
  if (options.batch_size < 1 || options.workers < 0 || options.prefetch < 1) {
    throw InvalidArgument(fmt::format("DataLoader: batch_size {}, workers {}, prefetch {}; wanted at least 1, 0 and 1",
                                      options.batch_size, options.workers, options.prefetch));
  }
}

void LoaderCore::set_epoch(std::int64_t epoch) {
  if (const auto running = running_.lock(); running && running->position() < num_batches()) {
    throw InvalidArgument(fmt::format(
        "DataLoader: set_epoch({}) in the middle of epoch {} (batch {} of {}); leave the loop over it first", epoch,
        epoch_, running->position(), num_batches()));
  }
  sampler_->set_epoch(epoch);
  epoch_ = epoch;
}

std::shared_ptr<OrderedPrefetch> LoaderCore::start() {
  if (const auto running = running_.lock(); running && running->position() < num_batches()) {
    throw InvalidArgument(fmt::format("DataLoader: begin() while epoch {} is at batch {} of {}; one pass at a time",
                                      epoch_, running->position(), num_batches()));
  }
  auto produce = [read = read_, sampler = sampler_, size = options_.batch_size, epoch = epoch_](std::int64_t index) {
    const std::vector<std::int64_t> ids = sampler->batch(index, size);
    try {
      return read(ids);
    } catch (...) {
      rethrow_from(fmt::format("data: reading batch {} of epoch {} (samples {}) failed: ", index, epoch, id_list(ids)));
    }
  };
  std::shared_ptr<OrderedPrefetch> epoch = make_owned_here<OrderedPrefetch>(
      std::move(produce), num_batches(), options_.workers, options_.workers * options_.prefetch, options_.timeout);
  running_ = epoch;
  return epoch;
}

}  // namespace lockstep::data::detail
