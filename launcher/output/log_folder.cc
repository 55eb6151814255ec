// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_folder.h"

#include <fmt/format.h>

namespace lockstep::launcher {

std::string log_folder(const std::string& log_dir, int start) { return fmt::format("{}/start{}", log_dir, start); }

std::string rank_label(int rank, Stream stream) {
  return fmt::format("rank{}.{}", rank, stream == Stream::out ? "out" : "err");
}

std::string rank_log(const std::string& log_dir, int start, int rank, Stream stream) {
  return fmt::format("{}/{}", log_folder(log_dir, start), rank_label(rank, stream));
}

std::string job_log(const std::string& log_dir, int hosts, int start, int node_rank) {
  if (hosts == 1) return log_dir + "/job.log";
  if (start == 1) return fmt::format("{}/job.node{}.log", log_dir, node_rank);
  return fmt::format("{}/job.start{}.node{}.log", log_dir, start, node_rank);
}

bool is_job_log(std::string_view file) { return file.starts_with("job.") && file.ends_with(".log"); }

std::string verdict_file(const std::string& folder) { return folder + "/verdict.json"; }

}  // namespace lockstep::launcher
