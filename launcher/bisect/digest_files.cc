// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/digest_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/regular_file.h"

namespace lockstep::launcher::bisect {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "lockstep step digests 2";

bool is_digest_file(const fs::path& file) {
  const std::string name = file.filename().native();
  return name.starts_with("rank") && name.ends_with(".jsonl");
}

class FileReader {
 public:
  FileReader(fs::path file, Recorded& all) : file_(std::move(file)), all_(&all) {}

  void read() {
    require_regular(file_, true);
    std::ifstream in(file_);
    if (!in) throw InvalidArgument(fmt::format("{} can't be opened", file_.native()));
    for (std::string line; std::getline(in, line);) {
      ++number_;
      if (in.eof()) break;  // no newline: the line was cut off
      const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
      // A line that one start could not write whole is followed by the first line of the next start.
      if (cut_ > 0 && !parsed.contains("format")) refuse(cut_, "it is not JSON");
      cut_ = parsed.is_object() ? 0 : number_;
      if (cut_ > 0) continue;
      try {
        take(parsed);
      } catch (const json::exception&) {
        refuse(number_, "a part is missing, or of another type");
      }
    }
    if (who_.empty()) refuse(1, "it is not whole");
  }

 private:
  [[noreturn]] void refuse(int line, const std::string& why) const {
    throw CorruptData(fmt::format(
        "{}: line {} was not written by a rank: {}; give a folder whose files were written with LOCKSTEP_STEP_DIGESTS",
        file_.native(), line, printable(why)));
  }

  void take(const json& line) {
    if (line.contains("format")) {
      begin(line);
    } else if (who_.empty()) {
      refuse(number_, "the first one names no format");
    } else {
      step(line);
    }
  }

  void begin(const json& line) {
    if (line.at("format") != kFormat) refuse(number_, fmt::format("its format is not '{}'", kFormat));
    who_ = fmt::format("rank {} of {} ({}{})", line.at("rank").get<int>(), line.at("ranks").get<int>(),
                       file_.parent_path().native(), ++starts_ > 1 ? fmt::format(", start {}", starts_) : "");
    const auto parameters = line.at("parameters").get<std::vector<std::string>>();
    const int micro_batches = line.at("micro_batches").get<int>();
    const auto global_batch = line.at("global_batch").get<std::int64_t>();
    if (all_->parameters.empty()) {
      all_->parameters = parameters;
      all_->micro_batches = micro_batches;
      all_->global_batch = global_batch;
      return;
    }
    if (micro_batches != all_->micro_batches || global_batch != all_->global_batch) {
      throw InvalidArgument(fmt::format(
          "the file {} has {} fixed micro-batches in a batch of {} rows, but an earlier file has {} in a batch of {}, "
          "so their steps can't be compared; give folders of runs with the same micro_batches and global_batch",
          file_.native(), micro_batches, global_batch, all_->micro_batches, all_->global_batch));
    }
    const auto [one, other] =
        std::mismatch(parameters.begin(), parameters.end(), all_->parameters.begin(), all_->parameters.end());
    if (one == parameters.end() && other == all_->parameters.end()) return;
    throw InvalidArgument(
        fmt::format("{}: parameter {} is {} in this file, but {} in an earlier file, so the two files are of different "
                    "models; give folders of runs that train the same model",
                    file_.native(), one - parameters.begin(), one == parameters.end() ? "none" : printable(*one),
                    other == all_->parameters.end() ? "none" : printable(*other)));
  }

  void step(const json& line) {
    Step& step = all_->steps[line.at("step").get<std::int64_t>()];
    for (const auto& [name, digests] : line.at("micro_batches").items()) {
      int micro_batch = -1;
      std::from_chars(name.data(), name.data() + name.size(), micro_batch);
      if (micro_batch < 0 || micro_batch >= all_->micro_batches)
        refuse(number_, fmt::format("there is no micro-batch '{}'", name));
      step.micro_batches[micro_batch].push_back(of_this_rank(digests));
    }
    step.sums.push_back(of_this_rank(line.at("sum")));
  }

  Digests of_this_rank(const json& digests) const {
    Digests found{.who = who_, .values = digests.get<std::vector<std::string>>()};
    if (found.values.size() != all_->parameters.size()) {
      refuse(number_, fmt::format("{} digests of {} parameters", found.values.size(), all_->parameters.size()));
    }
    return found;
  }

  fs::path file_;
  Recorded* all_;
  std::string who_;  // the start to which the current lines belong
  int starts_ = 0;
  int number_ = 0;  // number of the current line
  int cut_ = 0;     // number of the line that is not JSON
};

}  // namespace

Recorded read_digests(std::span<const fs::path> folders) {
  Recorded all;
  for (const fs::path& folder : folders) {
    std::error_code error;
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      if (is_digest_file(entry->path())) files.push_back(entry->path());
    }
    if (error)
      throw InvalidArgument(
          fmt::format("the folder {} can't be read: {}; give a folder that LOCKSTEP_STEP_DIGESTS named",
                      folder.native(), error.message()));
    if (files.empty()) {
      throw InvalidArgument(fmt::format(
          "the folder {} has no file of digests; run the program in fixed micro-batches, with LOCKSTEP_STEP_DIGESTS={}",
          folder.native(), folder.native()));
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) FileReader(file, all).read();
  }
  return all;
}

}  // namespace lockstep::launcher::bisect
