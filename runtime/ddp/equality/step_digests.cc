// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/step_digests.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/io.h"
#include "runtime/base/regular_file.h"

namespace lockstep {
namespace {

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string json_digests(const std::vector<std::uint64_t>& digests) {
  return fmt::format("[\"{:016x}\"]", fmt::join(digests, "\", \""));
}

}  // namespace

std::unique_ptr<StepDigests> StepDigests::open(const std::string& folder, const Reproducible& reproducible, int rank,
                                               int world, std::span<const ParameterSpec> specs) {
  if (folder.empty()) return nullptr;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw SystemError(
        fmt::format(
            "LOCKSTEP_STEP_DIGESTS: can't make the folder {} (set the variable to a folder that this user may make)",
            folder),
        error.value());
  std::unique_ptr<StepDigests> digests(
      new StepDigests(fmt::format("{}/rank{}-of-{}.jsonl", folder, rank, world), specs.size()));
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) names.push_back(json_text(spec.name));
  digests->end_cut_line();
  digests->write(
      fmt::format("{{\"format\": \"lockstep step digests 2\", \"rank\": {}, \"ranks\": {}, "
                  "\"micro_batches\": {}, \"global_batch\": {}, \"parameters\": [{}]}}\n",
                  rank, world, reproducible.micro_batches, reproducible.global_batch, fmt::join(names, ", ")));
  return digests;
}

StepDigests::StepDigests(std::string file, std::size_t parameters)
    : file_(std::move(file)), fd_(open_regular(file_, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW)), sums_(parameters) {
  if (!fd_) throw SystemError("LOCKSTEP_STEP_DIGESTS: open " + file_, errno);
}

// Ends the file's last line if an earlier run of the program could not write this line completely. The program that
// reads the file skips an incomplete line if the next line is the first line of a new run.
void StepDigests::end_cut_line() {
  char last = '\n';
  const off_t size = ::lseek(fd_.get(), 0, SEEK_END);
  if (size > 0 && ::pread(fd_.get(), &last, 1, size - 1) == 1 && last != '\n') write("\n");
}

void StepDigests::write(const std::string& line) {
  if (write_all(fd_.get(), line) != line.size()) throw SystemError("LOCKSTEP_STEP_DIGESTS: write " + file_, errno);
}

void StepDigests::micro_batch(int micro_batch, std::size_t parameter, std::span<const std::byte> gradient) {
  std::vector<std::uint64_t>& digests = micro_batches_[micro_batch];
  digests.resize(sums_.size());
  digests[parameter] = hash64(gradient.data(), gradient.size());
}

void StepDigests::sum(std::size_t parameter, std::span<const std::byte> gradient) {
  sums_[parameter] = hash64(gradient.data(), gradient.size());
}

void StepDigests::end_step(std::int64_t step) {
  if (step == last_step_ && ::ftruncate(fd_.get(), last_line_) != 0) {
    throw SystemError("LOCKSTEP_STEP_DIGESTS: truncate " + file_, errno);
  }
  last_step_ = step;
  last_line_ = ::lseek(fd_.get(), 0, SEEK_END);
  std::vector<std::string> micro_batches;
  for (const auto& [micro_batch, digests] : micro_batches_)
    micro_batches.push_back(fmt::format("\"{}\": {}", micro_batch, json_digests(digests)));
  write(fmt::format("{{\"step\": {}, \"micro_batches\": {{{}}}, \"sum\": {}}}\n", step, fmt::join(micro_batches, ", "),
                    json_digests(sums_)));
  micro_batches_.clear();
}

}  // namespace lockstep
